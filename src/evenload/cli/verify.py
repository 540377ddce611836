"""``evenload verify``: whether a Groth16 proof is valid."""

import json
from pathlib import Path

import click

from evenload.cli.options import PATH, json_option

__all__ = ["verify"]


@click.command()
@click.argument("key", type=PATH)
@click.argument("public", type=PATH)
@click.argument("proof", type=PATH)
@json_option
def verify(key: Path, public: Path, proof: Path, as_json: bool) -> int:
    """Verify PROOF (proof.json) of PUBLIC (public.json) under KEY (vkey.json or a .zkey). Exit code 0:
    valid, 1: not.

    Proofs made by snarkjs, rapidsnark or evenload. Non-canonical numbers, public inputs not below r and
    points outside the subgroup are refused, not reduced. A JSON file of more than 10 MB is refused unread.
    """
    from evenload._bounded_json import read_json_file
    from evenload.zk.groth16 import Proof, VerificationKey, public_from_json
    from evenload.zk.verifier import Verifier

    if key.suffix == ".zkey":
        from evenload.zk.formats.zkey import read_zkey

        verification_key = read_zkey(key).verification_key
    else:
        verification_key = VerificationKey.from_json(read_json_file(key), str(key))
    values = public_from_json(read_json_file(public), str(public))
    candidate = Proof.from_json(read_json_file(proof), str(proof))
    why_not = Verifier(verification_key).why_not(values, candidate)
    if as_json:
        click.echo(json.dumps({"schema": 1, "valid": why_not is None, "why_not": why_not}))
    else:
        click.echo("valid" if why_not is None else f"not valid: {why_not}")
    return 0 if why_not is None else 1
