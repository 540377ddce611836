"""``evenload prove``: a key and witnesses to verified proofs, over every device."""

import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenload.cli.monitoring.monitoring import recorded, reporting, watch_options
from evenload.cli.monitoring.step_events import Steps
from evenload.errors import ConfigError, EvenloadError

if TYPE_CHECKING:
    from evenload.events import EventLog

__all__ = ["prove"]


@click.command()
@click.argument("zkey", type=click.Path(path_type=Path))
@click.argument(
    "witnesses", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="WITNESS.wtns..."
)
@click.option("-o", "--out", type=click.Path(path_type=Path), default=Path("proofs"), show_default=True)
@click.option(
    "--devices", help="A worker each: all, wgpu:0, cpu*2, ...; default: one witness here, more over cpu."
)
@click.option("--policy", default="measured", show_default=True, help="How witnesses are dealt.")
@click.option("--threads", type=click.IntRange(1), help="Threads for one witness (default: all processors).")
@click.option("--level", help="Kernels: ifma52 or word64 (CPU), u64 or limb13 (GPU); default: the best.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but the result.")
@watch_options
def prove(
    zkey: Path,
    witnesses: tuple[Path, ...],
    out: Path,
    devices: str | None,
    policy: str,
    threads: int | None,
    level: str | None,
    as_json: bool,
    quiet: bool,
    has_dash: bool,
    metrics_port: str | None,
    has_otel: bool,
) -> int:
    """Prove WITNESS.wtns... with ZKEY (Groth16, BN254) and write NAME.proof.json and NAME.public.json.

    Every proof is verified before it is written. What failed is listed, and the exit code is 1. CPU devices
    run kernels made for their processor, GPUs run WGSL through Vulkan, Metal or Direct3D 12.

    \b
    evenload prove circuit.zkey w1.wtns w2.wtns -o proofs --devices cpu*2
    evenload prove circuit.zkey *.wtns -o proofs --devices wgpu:0,cpu
    """
    names = _names(witnesses)
    out.mkdir(parents=True, exist_ok=True)
    rows = []
    is_map = devices is not None or (len(witnesses) > 1 and threads is None)
    with (
        reporting(metrics_port, has_otel) as sinks,
        recorded(f"prove {zkey.name}", has_dash, *sinks) as log,
        Steps(log, zkey.stem, "proof", len(names), None if is_map else "this process") as steps,
    ):
        proofs = _prove(zkey, witnesses, devices, policy, threads, level, log if is_map else None)
        for index, (name, path, done) in enumerate(zip(names, witnesses, proofs, strict=True)):
            rows.append(_write(out, name, path, done))
            steps.done(index, name, {f"{k}_s": v for k, v in rows[-1].get("stages_s", {}).items()})
            if not quiet:
                click.echo(rows[-1]["error"] or f"{path}: proved and verified", err=True)
    n_failed = sum(row["error"] is not None for row in rows)
    if as_json:
        click.echo(json.dumps({"schema": 1, "key": str(zkey), "failed": n_failed, "proofs": rows}, indent=2))
    else:
        for row in rows:
            click.echo(row["proof"] or f"failed: {row['witness']}")
    return 1 if n_failed else 0


def _names(witnesses: Sequence[Path]) -> list[str]:
    """The stem of each file; refused if two would write to the same name."""
    names = [path.stem for path in witnesses]
    twice = [name for name, n in Counter(names).items() if n > 1]
    if twice:
        raise ConfigError(
            f"several witnesses are called {twice[0]!r}", hint="prove them into separate folders (-o)"
        )
    return names


def _prove(
    zkey: Path,
    witnesses: Sequence[Path],
    devices: str | None,
    policy: str,
    threads: int | None,
    level: str | None,
    log: "EventLog | None",
) -> Iterator[Any]:
    """A ProvedStatement or an exception for each witness, in order; over devices if there is a ``log``."""
    if log is not None:
        from evenload.zk.batch import prove_batch

        _check_key(zkey)
        options = {"policy": policy, "on_error": "return", "level": level}
        options |= {"events": log, "stage": "proof"}
        yield from prove_batch(zkey, [str(path) for path in witnesses], devices or "cpu", **options)
        return
    from evenload.zk.prover import Prover

    with Prover(zkey, threads=threads or os.cpu_count() or 1, level=level) as prover:
        for path in witnesses:
            try:
                yield prover.prove(path)
            except (EvenloadError, OSError) as error:
                yield error


def _check_key(zkey: Path) -> None:
    """A key that cannot be used is an error of the command, not of each witness."""
    from evenload.zk.formats.zkey import read_zkey

    read_zkey(zkey)


def _write(out: Path, name: str, witness: Path, done: Any) -> dict[str, Any]:
    """Write what was proved; the error is in the row if it was not, or if the disk does not take it."""
    if isinstance(done, BaseException):
        cause = done.__cause__ or done
        why = cause.message if isinstance(cause, EvenloadError) else str(cause)
        return _failed(witness, why)
    from evenload.zk.groth16 import public_to_json

    proof, public = out / f"{name}.proof.json", out / f"{name}.public.json"
    try:
        # An older proof goes first: whenever this ends, no proof stands beside another's public inputs.
        proof.unlink(missing_ok=True)
        _replace(public, public_to_json(done.public))
        _replace(proof, done.proof.to_json())
    except OSError as error:
        return _failed(witness, f"proved, but not written: {error}")
    stages = {stage: round(seconds, 6) for stage, seconds in done.stages.items()}
    return {
        "witness": str(witness),
        "proof": str(proof),
        "public": str(public),
        "error": None,
        "stages_s": stages,
    }


def _failed(witness: Path, why: str) -> dict[str, Any]:
    return {"witness": str(witness), "proof": None, "public": None, "error": why}


def _replace(path: Path, text: str) -> None:
    """Whole or not at all."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".proof-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
