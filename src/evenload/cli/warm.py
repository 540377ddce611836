"""``evenload warm``: have the machine code ready that first answers would wait for."""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from evenload.cli.options import PATH, json_option, page_json
from evenload.errors import MissingExtra, UnknownName

__all__ = ["warm"]


@click.command()
@click.argument("parts", nargs=-1, metavar="[moe] [zk] [merkle] [clients]")
@click.option(
    "--key", "keys", type=PATH, multiple=True, metavar="ZKEY", help="Check this proving key, and keep it."
)
@json_option
def warm(parts: tuple[str, ...], keys: tuple[Path, ...], as_json: bool) -> int:
    """Compile kernels now, so that first calls after installation need not wait; by default of every part.

    Kernels that come with the package need nothing made. Others are compiled and kept in
    EVENLOAD_KERNEL_CACHE (by default ~/.cache/evenload/kernels), and what torch compiles in
    TORCHINDUCTOR_CACHE_DIR. A proving key is kept checked and converted, for `evenload zk prove`. In a
    container's build, run it as the user that will run the container.
    """
    for part in parts:
        if part not in PARTS:
            raise UnknownName("part", part, PARTS)
    wanted = parts or (() if keys else tuple(PARTS))
    found = {part: _warmed(part, is_asked=part in parts) for part in wanted}
    kept = {str(key): _kept(key) for key in keys}
    if as_json:
        click.echo(page_json({"schema": 1, "parts": found, "keys": kept}))
        return 0
    for key, wall_s in kept.items():
        click.echo(f"{key}: checked after {wall_s:.1f} s")
    for part, facts in found.items():
        click.echo(f"{part:<8} {_told(facts)}")
    return 0


def _warmed(part: str, is_asked: bool) -> dict[str, Any]:
    """What became of a part. Raises MissingExtra if it was asked for by name."""
    from evenload.native import objects

    n_before, start = len(objects.origins), time.perf_counter()
    try:
        PARTS[part]()
    except MissingExtra as error:
        if is_asked:
            raise
        return {"left_out": str(error).splitlines()[0]}
    how = Counter(origin.how for origin in objects.origins[n_before:])
    counts = {name: how[name] for name in ("shipped", "cached", "compiled")}
    return counts | {"wall_s": round(time.perf_counter() - start, 3)}


def _kept(key: Path) -> float:
    """Have a proving key checked and kept; the seconds that it took."""
    from evenload.zk.key_store import KeyStore
    from evenload.zk.proving_devices import CPU

    start = time.perf_counter()
    KeyStore(key, first=CPU, keeps=True).close()
    return round(time.perf_counter() - start, 3)


def _told(facts: dict[str, Any]) -> str:
    if "left_out" in facts:
        return f"left out: {facts['left_out']}"
    counts = [f"{n} {how}" for how, n in facts.items() if how != "wall_s" and n]
    return f"ready after {facts['wall_s']:.1f} s" + (f" ({', '.join(counts)})" if counts else "")


def _moe() -> None:
    from evenload.moe.warming import warm

    warm()


def _zk() -> None:
    from evenload.gpu.llvm import programs

    programs.scalar()
    programs.bulk()


def _merkle() -> None:
    from evenload.gpu.hashing.rules import RULES
    from evenload.gpu.llvm.hash.hash_kernels import hash_program
    from evenload.gpu.llvm.hash.poseidon_kernels import poseidon_program

    for rule in RULES:
        hash_program(rule)
    poseidon_program()


def _clients() -> None:
    """Compile a step of a tiny model: what torch's compiler makes once for every model is there then."""
    from evenload._optional import require

    torch = require("torch", extra="torch", why="training clients")
    from evenload.clients import SGD, Recipe, train
    from evenload.clients.tune.engine_checks import why_not_compiled

    strategy = "fused:2" if why_not_compiled() else "fused-compiled:2"
    datasets = [(torch.zeros(4, 8), torch.zeros(4, dtype=torch.int64))] * 2
    train(torch.nn.Linear(8, 3), datasets, Recipe(optimizer=SGD(lr=0.1), batch_size=2), strategy=strategy)


PARTS: dict[str, Callable[[], None]] = {"moe": _moe, "zk": _zk, "merkle": _merkle, "clients": _clients}
