"""``evenload zk prove`` and ``fullprove``: keys and witnesses, or circuits and inputs, to verified proofs."""

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenload._private_files import whole_file
from evenload.cli.monitoring.monitoring import Monitors, monitor_options, recorded, watched
from evenload.cli.options import (
    PATH,
    NumberRange,
    argument,
    json_option,
    option,
    page_json,
    passed_as,
    quiet_option,
    shared,
)
from evenload.errors import ConfigError, EvenloadError, MissingExtra, UnknownName, quoted, reason_of

if TYPE_CHECKING:
    from evenload.events import EventLog
    from evenload.zk.circom.sandbox import Limits
    from evenload.zk.prover import Prover


@dataclass(frozen=True, slots=True, kw_only=True)
class ProveOptions:
    """The options of ``evenload zk prove``."""

    zkey: Path = argument(type=PATH)
    witnesses: tuple[Path, ...] = argument(type=PATH, nargs=-1, required=True, metavar="WITNESS.wtns...")
    out: Path = option("-o", "--out", type=PATH, default=Path("proofs"), show_default=True)
    devices: str | None = option(
        "--devices", help="A worker each: all, wgpu:0, cpu*2, ...; default: one witness here, more over cpu."
    )
    policy: str = option("--policy", default="measured", show_default=True, help="How witnesses are dealt.")
    threads: int | None = option(
        "--threads", type=click.IntRange(1), help="Threads for one witness (default: all processors)."
    )
    level: str | None = option(
        "--level", help="Kernels: ifma52, fma52x8, fma52x4, word64 (CPU), u64, limb13 (GPU); default: best."
    )
    as_json: bool = shared(json_option)
    quiet: bool = shared(quiet_option)

    @property
    def is_mapped(self) -> bool:
        """Whether workers prove, not threads of this process."""
        return self.devices is not None or (len(self.witnesses) > 1 and self.threads is None)


@click.command()
@monitor_options
@passed_as(ProveOptions)
def prove(request: ProveOptions, monitors: Monitors) -> int:
    """Prove WITNESS.wtns... with ZKEY (Groth16, BN254) and write NAME.proof.json and NAME.public.json.

    Every proof is verified before it is written. What failed is listed, and the exit code is 1. CPU devices
    run kernels made for their processor, GPUs run WGSL through Vulkan, Metal or Direct3D 12.

    \b
    evenload zk prove circuit.zkey w1.wtns w2.wtns -o proofs --devices cpu*2
    evenload zk prove circuit.zkey *.wtns -o proofs --devices wgpu:0,cpu
    """
    from evenload.balance.policy import policy_from_name

    names = _names(request.witnesses)
    policy_from_name(request.policy)
    request.out.mkdir(parents=True, exist_ok=True)
    rows = []
    with contextlib.ExitStack() as stack:
        proofs, done_step = _proofs(request, monitors, stack)
        for index, (name, path, done) in enumerate(zip(names, request.witnesses, proofs, strict=True)):
            rows.append(write_proof(request.out, name, path, done))
            done_step(index, name, {f"{k}_s": v for k, v in rows[-1].get("stages_s", {}).items()})
            if not request.quiet:
                click.echo(rows[-1]["error"] or f"{path}: proved and verified", err=True)
    n_failed = sum(row["error"] is not None for row in rows)
    if request.as_json:
        page = {"schema": 1, "key": str(request.zkey), "failed": n_failed, "proofs": rows}
        click.echo(page_json(page, indent=2))
    else:
        for row in rows:
            click.echo(row["proof"] or f"failed: {row['witness']}")
    return 1 if n_failed else 0


def _proofs(
    request: ProveOptions, monitors: Monitors, stack: contextlib.ExitStack
) -> tuple[Iterator[Any], Callable[..., object]]:
    """The proofs in order, and what is told of each that is done; ``stack`` holds what must be closed."""
    name = f"prove {request.zkey.name}"
    if monitors == Monitors() and not request.is_mapped:  # nobody reads the events of a short process
        stack.enter_context(watched(name, None))
        return _prove_here(request), lambda *_: None
    from evenload.cli.monitoring.step_events import Steps

    log = stack.enter_context(recorded(name, monitors))
    where = None if request.is_mapped else "this process"
    steps = stack.enter_context(Steps(log, request.zkey.stem, "proof", len(request.witnesses), where))
    return _prove_mapped(request, log) if request.is_mapped else _prove_here(request), steps.done


def _names(witnesses: Sequence[Path]) -> list[str]:
    """The stem of each file. Raises ConfigError if two would write to the same name."""
    names = [path.stem for path in witnesses]
    twice = [name for name, n in Counter(names).items() if n > 1]
    if twice:
        raise ConfigError(
            f"several witnesses are called {quoted(twice[0])}", hint="prove them into separate folders (-o)"
        )
    return names


def _prove_mapped(request: ProveOptions, log: "EventLog") -> Iterator[Any]:
    """Yield a ProvedStatement or an exception for each witness, in order; a worker on each device.

    A key that cannot be used is an error of the command, not of each witness: it is read here, too.
    """
    from evenload.zk.batch import prove_batch
    from evenload.zk.formats.zkey import read_zkey

    read_zkey(request.zkey)
    options: dict[str, Any] = {
        "policy": request.policy,
        "on_error": "return",
        "level": request.level,
        "keep": True,
    }
    options |= {"events": log, "stage": "proof"}
    witnesses = [str(path) for path in request.witnesses]
    yield from prove_batch(request.zkey, witnesses, request.devices or "cpu", **options)


def _prove_here(request: ProveOptions) -> Iterator[Any]:
    """Yield a ProvedStatement or an exception for each witness, in order; by threads of this process."""
    with prover_for(request.zkey, request.threads, request.level) as prover:
        for path in request.witnesses:
            try:
                yield prover.prove(path)
            except (EvenloadError, OSError) as error:
                yield error


def prover_for(zkey: Path, threads: int | None, level: str | None) -> "Prover":
    """A prover of this process, on all its processors unless ``threads`` says less; it keeps the key."""
    _import_numpy()
    from evenload.zk.prover import Prover
    from evenload.zk.queue import n_processors

    return Prover(zkey, threads=threads or n_processors(), level=level, keep=True)


def _import_numpy() -> None:
    """Import numpy without the threads of its linear algebra, which no proof uses and a start waits for."""
    wish = os.environ.get("OPENBLAS_NUM_THREADS")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    try:
        import numpy  # noqa: F401 - for its effect
    finally:
        del os.environ["OPENBLAS_NUM_THREADS"]
        if wish is not None:
            os.environ["OPENBLAS_NUM_THREADS"] = wish


def write_proof(out: Path, name: str, witness: Path, done: Any) -> dict[str, Any]:
    """Write a proof and return its row; an error, of proving or of writing, stands in the row."""
    if isinstance(done, BaseException):
        return failed_row(witness, done)
    from evenload.zk.groth16 import public_to_json

    proof, public = out / f"{name}.proof.json", out / f"{name}.public.json"
    try:
        # Remove an older proof first: a proof never lies beside the public inputs of another.
        proof.unlink(missing_ok=True)
        for path, text in ((public, public_to_json(done.public)), (proof, done.proof.to_json())):
            with whole_file(path, 0o644) as file:
                file.write(text.encode())
    except OSError as error:
        return _row_of(witness, f"proved, but not written: {reason_of(error, with_path=True)}")
    stages = {stage: round(seconds, 6) for stage, seconds in done.stages.items()}
    return {
        "witness": str(witness),
        "proof": str(proof),
        "public": str(public),
        "error": None,
        "stages_s": stages,
    }


def failed_row(witness: Path, error: BaseException) -> dict[str, Any]:
    """The row of a witness that was not proved."""
    cause = error.__cause__ or error
    if isinstance(cause, OSError):
        path = str(witness if cause.filename is None else cause.filename)
        why = (
            f"{quoted(path, 200)} cannot be used: {reason_of(cause)}; check the path, and that you may use it"
        )
    else:
        why = cause.message if isinstance(cause, EvenloadError) else str(cause)
    return _row_of(witness, why)


def _row_of(witness: Path, why: str) -> dict[str, Any]:
    return {"witness": str(witness), "proof": None, "public": None, "error": why}


@dataclass(frozen=True, slots=True, kw_only=True)
class FullProveRequest:
    """The options of ``evenload zk fullprove``."""

    circuit: Path = argument(type=PATH, metavar="CIRCUIT.wasm")
    inputs: Path = argument(type=PATH, metavar="INPUT.json")
    zkey: Path = argument(type=PATH)
    out: Path = option("-o", "--out", type=PATH, default=Path("proofs"), show_default=True)
    witness: Path | None = option(
        "--witness", type=PATH, metavar="FILE.wtns", help="Write the witness here, too."
    )
    threads: int | None = option(
        "--threads", type=click.IntRange(1), help="Threads (default: all processors)."
    )
    level: str | None = option(
        "--level", help="Kernels: ifma52, fma52x8, fma52x4 or word64; default: the best."
    )
    time_limit: float = option(
        "--time-limit",
        type=NumberRange(0, min_open=True),
        default=600.0,
        show_default=True,
        metavar="SECONDS",
        help="For the circuit's program.",
    )
    memory_limit: str = option(
        "--memory-limit", default="4 GiB", show_default=True, help="For the circuit's program."
    )
    as_json: bool = shared(json_option)
    quiet: bool = shared(quiet_option)


@click.command()
@passed_as(FullProveRequest)
def fullprove(request: FullProveRequest) -> int:
    """Calculate the witness of INPUT.json by CIRCUIT.wasm, prove it with ZKEY, and verify the proof.

    CIRCUIT.wasm is what circom 2 compiles (--wasm), the witness that of snarkjs byte for byte. It runs in a
    sandbox. INPUT.proof.json and INPUT.public.json are written as by `evenload zk prove`.

    \b
    evenload zk fullprove circuit_js/circuit.wasm input.json circuit.zkey
    """
    from evenload._memory_sizes import limit_from
    from evenload.zk.circom.sandbox import Limits

    limits = Limits(request.time_limit, limit_from(request.memory_limit, "--memory-limit"))
    request.out.mkdir(parents=True, exist_ok=True)
    name = request.inputs.stem
    with contextlib.ExitStack() as stack:
        stack.enter_context(watched(f"fullprove {request.zkey.name}", None))
        try:
            row = write_proof(request.out, name, request.inputs, _proved(request, limits))
        except (MissingExtra, UnknownName):
            raise
        except (EvenloadError, OSError) as error:
            row = failed_row(request.inputs, error)
    row = {"inputs": row.pop("witness"), **row}
    if request.as_json:
        click.echo(page_json({"schema": 1, "key": str(request.zkey), **row}, indent=2))
    elif row["error"] is None:
        click.echo(row["proof"])
    if row["error"] is not None and not (request.as_json and request.quiet):
        click.echo(f"error: {row['error']}", err=True)
    return 0 if row["error"] is None else 1


def _proved(request: FullProveRequest, limits: "Limits") -> Any:
    """The proved statement. Raises EvenloadError or OSError."""
    from evenload._private_files import read_named
    from evenload.zk.circom.input_values import MOST_BYTES, parse_inputs
    from evenload.zk.circom.witness import calculate_witness
    from evenload.zk.formats.witness import write_witness

    inputs = parse_inputs(read_named(request.inputs, MOST_BYTES), str(request.inputs))
    with prover_for(request.zkey, request.threads, request.level) as prover:
        values = calculate_witness(
            request.circuit,
            inputs,
            limits=limits,
            accept=prover.accept,
            log=None if request.quiet else lambda line: click.echo(line, err=True),
        )
        if request.witness is not None:
            write_witness(request.witness, values)
        return prover.prove(values)
