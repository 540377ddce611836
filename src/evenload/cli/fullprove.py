"""``evenload zk fullprove``: a circuit's WASM, its inputs and a key to a verified proof."""

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from evenload.cli.monitoring.monitoring import watched
from evenload.cli.options import PATH, NumberRange, json_option, passed_as, quiet_option
from evenload.cli.prove import failed_row, prover_for, write_proof
from evenload.errors import EvenloadError, MissingExtra


@dataclass(frozen=True, slots=True)
class FullProveRequest:
    """The options of ``evenload zk fullprove``."""

    circuit: Path
    inputs: Path
    zkey: Path
    out: Path
    witness: Path | None
    threads: int | None
    level: str | None
    time_limit: float
    memory_limit: str
    as_json: bool
    quiet: bool


@click.command()
@click.argument("circuit", type=PATH, metavar="CIRCUIT.wasm")
@click.argument("inputs", type=PATH, metavar="INPUT.json")
@click.argument("zkey", type=PATH)
@click.option("-o", "--out", type=PATH, default=Path("proofs"), show_default=True)
@click.option("--witness", type=PATH, metavar="FILE.wtns", help="Write the witness here, too.")
@click.option("--threads", type=click.IntRange(1), help="Threads (default: all processors).")
@click.option("--level", help="Kernels: ifma52, fma52x8, fma52x4 or word64; default: the best.")
@click.option(
    "--time-limit",
    type=NumberRange(0, min_open=True),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="For the circuit's program.",
)
@click.option("--memory-limit", default="4 GiB", show_default=True, help="For the circuit's program.")
@json_option
@quiet_option
@passed_as(FullProveRequest)
def fullprove(request: FullProveRequest) -> int:
    """Calculate the witness of INPUT.json by CIRCUIT.wasm, prove it with ZKEY, and verify the proof.

    CIRCUIT.wasm is what circom 2 compiles (--wasm), the witness that of snarkjs byte for byte. It runs in a
    sandbox. INPUT.proof.json and INPUT.public.json are written as by `evenload zk prove`.

    \b
    evenload zk fullprove circuit_js/circuit.wasm input.json circuit.zkey
    """
    request.out.mkdir(parents=True, exist_ok=True)
    name = request.inputs.stem
    with contextlib.ExitStack() as stack:
        stack.enter_context(watched(f"fullprove {request.zkey.name}", None))
        try:
            row = write_proof(request.out, name, request.inputs, _proved(request))
        except MissingExtra:
            raise
        except (EvenloadError, OSError) as error:
            row = failed_row(request.inputs, error)
    row = {"inputs": row.pop("witness"), **row}
    if request.as_json:
        click.echo(json.dumps({"schema": 1, "key": str(request.zkey), **row}, indent=2))
    elif row["error"] is None:
        click.echo(row["proof"])
    if row["error"] is not None and not (request.as_json and request.quiet):
        click.echo(f"error: {row['error']}", err=True)
    return 0 if row["error"] is None else 1


def _proved(request: FullProveRequest) -> Any:
    """The proved statement. Raises EvenloadError or OSError."""
    from evenload._memory_sizes import limit_from
    from evenload._private_files import read_named
    from evenload.zk.circom.input_values import MOST_BYTES, parse_inputs
    from evenload.zk.circom.sandbox import Limits
    from evenload.zk.circom.witness import calculate_witness
    from evenload.zk.formats.witness import write_witness

    limits = Limits(request.time_limit, limit_from(request.memory_limit, "memory_limit"))
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
