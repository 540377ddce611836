"""``evenload bench prove`` and ``merkle`` (also ``evenload merkle bench``): how they scale over devices."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from evenload._plain_text import number_text
from evenload.cli.options import PATH, json_option, page_json, scheme_option
from evenload.cli.terminal.table import format_table
from evenload.errors import ConfigError

devices_option = click.option(
    "--devices",
    "specs",
    multiple=True,
    help="Devices to measure, one of them alone and all together; repeat it. Default: all.",
)


def table_of(rows: Sequence[Mapping[str, Any]], n_digits: int = 3) -> list[str]:
    """Rows of equal keys as lines of a table; a dash stands where there is nothing."""

    def cell(value: Any) -> str:
        if isinstance(value, float):
            return number_text(value, n_digits)
        return "–" if value is None else str(value)

    head = [key.replace("_", " ") for key in rows[0]]
    return format_table(head, [[cell(row.get(key)) for key in rows[0]] for row in rows], right=head[1:])


def echo_rows(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], as_json: bool) -> None:
    """Print rows of equal keys as a table, or with ``facts`` as one JSON object."""
    page = {"schema": 1, **facts, "rows": rows}
    click.echo(page_json(page, indent=2) if as_json else "\n".join(table_of(rows)))


@click.command("merkle")
@devices_option
@click.option(
    "--leaves", "n_leaves", type=click.IntRange(1024, 1 << 28), default=1_000_000, show_default=True
)
@scheme_option
@click.option(
    "--strategy", default="measured", show_default=True, help="How blocks are dealt to the devices."
)
@click.option(
    "--runs", type=click.IntRange(1), default=3, show_default=True, help="The best of so many counts."
)
@json_option
def merkle_bench(
    specs: tuple[str, ...], n_leaves: int, scheme: str, strategy: str, runs: int, as_json: bool
) -> int:
    """Time the root of random leaves of 32 bytes, on one device of a selection and on all of it.

    Seconds are wall time, workers warm, the leaves in a file in memory. Speed-up and Amdahl's prediction
    compare with the selection's first device, which has the same threads in both rows. Amdahl takes what
    happens before and after the devices hash as the share that does not get faster.
    """
    from evenload.cli.bench.measure.merkle import compare_roots

    rows = compare_roots(specs or ("all",), n_leaves, scheme, strategy, runs)
    echo_rows(rows, {"leaves": n_leaves, "scheme": scheme, "strategy": strategy}, as_json)
    return 0


@click.command("prove")
@devices_option
@click.option("--proofs", "n_proofs", type=click.IntRange(1), default=16, show_default=True)
@click.option("--constraints", type=click.IntRange(1, 1 << 28), default=20_000, show_default=True)
@click.option("--policy", default="measured", show_default=True, help="How witnesses are dealt.")
@click.option("--zkey", type=PATH, help="Prove with this key instead of one made here ...")
@click.option("--witness", type=PATH, help="... and this witness, again and again.")
@json_option
def prove_bench(
    specs: tuple[str, ...],
    n_proofs: int,
    constraints: int,
    policy: str,
    zkey: Path | None,
    as_json: bool,
    witness: Path | None,
) -> int:
    """Time a batch of Groth16 proofs on one device of a selection and on all of it; every proof is verified.

    Seconds are wall time. The start is that of the workers, the load of the key and the first proof; the work
    is the batch. Speed-up and Amdahl's prediction compare with the selection's first device, which has the
    same threads in both rows; Amdahl takes the start as the share that does not get faster.

    \b
    evenload bench prove --devices cpu*2
    evenload bench prove --devices wgpu:0,cpu --zkey circuit.zkey --witness w.wtns
    """
    from evenload.cli.bench.measure.prove import compare_batches, make_circuit

    if (zkey is None) != (witness is None):
        raise ConfigError("--zkey and --witness belong together", hint="give both, or neither")
    with tempfile.TemporaryDirectory() as folder:
        if zkey is None or witness is None:
            zkey, witness = make_circuit(Path(folder), constraints)
        rows = compare_batches(specs or ("all",), zkey, [str(witness)] * n_proofs, policy)
    echo_rows(rows, {"proofs": n_proofs, "constraints": constraints, "policy": policy}, as_json)
    return 0


@click.command()
@click.option("--experts", type=click.IntRange(1), default=256, show_default=True, help="Logical experts.")
@click.option("--slots", type=click.IntRange(1), default=288, show_default=True, help="Physical slots.")
@click.option("--gpus", type=click.IntRange(1), default=32, show_default=True, help="GPUs.")
@click.option("--layers", type=click.IntRange(1), default=58, show_default=True, help="MoE layers.")
@click.option(
    "--repeat", type=click.IntRange(1), default=20, show_default=True, help="Measurements; the median counts."
)
@json_option
def moe_bench(experts: int, slots: int, gpus: int, layers: int, repeat: int, as_json: bool) -> int:
    """Measure placing and routing on this machine: made-up log-normal loads, one thread."""
    from evenload.cli.bench.measure.experts import made_up_batches, time_decisions

    batches = made_up_batches(8, layers, experts, gpus)
    names = ("rebalance_experts, all layers", "exact routing, all layers", "place, one layer")
    eplb_s, route_s, search_s = time_decisions(batches, slots, gpus, repeat, n_searches=3)
    cpu_s = dict(zip(names, (eplb_s, route_s, search_s / layers), strict=True))
    sizes = {"layers": layers, "experts": experts, "slots": slots, "gpus": gpus}
    if as_json:
        click.echo(page_json({"schema": 1, "cpu_s": cpu_s, **sizes}))
    else:
        echo_rows([{"CPU time of": name, "ms": 1e3 * seconds} for name, seconds in cpu_s.items()], {}, False)
    return 0
