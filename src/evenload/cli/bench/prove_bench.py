"""``evenload bench prove``: how proving scales over devices."""

import tempfile
from pathlib import Path

import click

from evenload.cli.bench.tables import devices_option, echo_rows
from evenload.cli.options import PATH, json_option
from evenload.errors import ConfigError

__all__ = ["prove_bench"]


@click.command("prove")
@devices_option
@click.option("--proofs", "n_proofs", type=click.IntRange(1), default=16, show_default=True)
@click.option("--constraints", type=click.IntRange(1), default=20_000, show_default=True)
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
    witness: Path | None,
    as_json: bool,
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
