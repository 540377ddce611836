"""``evenload verify``: whether Groth16 proofs are valid."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenload._bounded_json import MAX_JSON_BYTES
from evenload._private_files import read_named
from evenload.cli.options import PATH, json_option
from evenload.errors import ConfigError, EvenloadError, printable, quoted, reason_of

if TYPE_CHECKING:
    from evenload.zk.groth16 import Proof, VerificationKey
    from evenload.zk.verifier import Verifier

__all__ = ["read_key", "verify"]


@click.command()
@click.argument("key", type=PATH)
@click.argument("files", type=PATH, nargs=-1, required=True, metavar="PUBLIC PROOF...")
@json_option
def verify(key: Path, files: tuple[Path, ...], as_json: bool) -> int:
    """Verify PROOF (proof.json) of PUBLIC (public.json) under KEY (vkey.json or a .zkey); several pairs of
    files at once, too. Exit code 0: all are valid, 1: not.

    Proofs made by snarkjs, rapidsnark or evenload. Non-canonical numbers, public inputs not below r and
    points outside the subgroup are refused, not reduced. A JSON file of more than 10 MB is refused unread.
    """
    from evenload.zk.verifier import Verifier

    if len(files) % 2:
        raise ConfigError(
            f"{len(files)} files are no pairs; the last is {quoted(str(files[-1]))}",
            hint="give the public inputs and the proof of each: PUBLIC PROOF PUBLIC PROOF ...",
        )
    verifier = Verifier(read_key(key))
    pairs = list(zip(files[::2], files[1::2], strict=True))
    if len(pairs) == 1:
        why_not = verifier.why_not(*_statement(*pairs[0]))
        page: dict[str, Any] = {"schema": 1, "valid": why_not is None, "why_not": why_not}
        lines = [_verdict(why_not)]
    else:
        answers = _answers(verifier, pairs)
        rows = [
            {"public": str(public), "proof": str(proof), "valid": why_not is None, "why_not": why_not}
            for (public, proof), why_not in zip(pairs, answers, strict=True)
        ]
        page = {"schema": 1, "valid": not any(answers), "proofs": rows}
        lines = [f"{printable(row['proof'])}: {_verdict(row['why_not'])}" for row in rows]
    click.echo(json.dumps(page) if as_json else "\n".join(lines))
    return 0 if page["valid"] else 1


def _verdict(why_not: str | None) -> str:
    return "valid" if why_not is None else f"not valid: {why_not}"


def read_key(path: Path) -> "VerificationKey":
    """The verification key of a vkey.json or a .zkey. Raises FormatError, OSError."""
    from evenload.zk.groth16 import VerificationKey

    if path.suffix == ".zkey":
        from evenload.zk.formats.zkey import read_zkey

        return read_zkey(path).verification_key
    return VerificationKey.from_json(read_named(path, MAX_JSON_BYTES), str(path))


def _statement(public: Path, proof: Path) -> tuple[list[int], "Proof"]:
    from evenload.zk.groth16 import Proof, public_from_json

    values = public_from_json(read_named(public, MAX_JSON_BYTES), str(public))
    return values, Proof.from_json(read_named(proof, MAX_JSON_BYTES), str(proof))


def _answers(verifier: "Verifier", pairs: list[tuple[Path, Path]]) -> list[str | None]:
    """For each pair of files why it is not valid; one that cannot be read leaves the others alone."""
    answers: list[str | None] = [None] * len(pairs)
    statements = {}
    for k, pair in enumerate(pairs):
        try:
            statements[k] = _statement(*pair)
        except (EvenloadError, OSError) as error:
            why = error.message if isinstance(error, EvenloadError) else reason_of(error, with_path=True)
            answers[k] = printable(why)
    for k, why_not in zip(statements, verifier.why_not_each(list(statements.values())), strict=True):
        answers[k] = why_not
    return answers
