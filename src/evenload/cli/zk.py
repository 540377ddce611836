"""``evenload zk``: are proofs valid, what is in keys; make INSECURE keys and circuits, too."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenload._bounded_json import MAX_JSON_BYTES
from evenload._private_files import read_named, write_named
from evenload.cli import LazyGroup
from evenload.cli.options import PATH, json_option, page_json
from evenload.errors import ConfigError, EvenloadError, printable, quoted, reason_of

if TYPE_CHECKING:
    from evenload.zk.formats.zkey import ZKey
    from evenload.zk.groth16 import Proof, VerificationKey
    from evenload.zk.verifier import Verifier


SECTIONS = {
    "Proofs": {
        "prove": ("prove:prove", "Prove witnesses, over every device, and verify the proofs."),
        "fullprove": ("prove:fullprove", "From a circuit's WASM and its inputs to a verified proof."),
        "verify": ("zk:verify", "Verify proofs."),
        "serve": ("serving.proof_server:serve", "Serve proofs over HTTP, with keys that stay loaded."),
        "calldata": ("zk:calldata", "Print a proof as arguments of the contract's verifyProof."),
    },
    "Keys": {
        "info": ("zk:info", "Say what a key is: sizes, hash, contributions."),
        "check": ("zk:check", "Say whether a key is one of a circuit."),
        "vkey": ("zk:vkey", "Export the verification key, as snarkjs does."),
        "solidity": ("zk:solidity", "Write a contract that verifies proofs."),
    },
    "To try": {
        "circuit": ("zk:circuit", "Write a circuit and a witness of it."),
        "devsetup": ("zk:devsetup", "Make an INSECURE key, for tests and benchmarks."),
    },
}  # fmt: skip


@click.group(cls=LazyGroup, sections=SECTIONS)
def zk() -> None:
    """Groth16 over BN254: proofs by every device, and their keys."""


@click.command()
@click.argument("zkey", type=PATH)
@click.option(
    "--check", is_flag=True, help="Check every point too, as a prover does (needs the kernels extra)."
)
@json_option
def info(zkey: Path, check: bool, as_json: bool) -> int:
    """Say what ZKEY is: sizes, hash, contributions."""
    from evenload.zk.formats.zkey import contribution_names, read_zkey

    key = read_zkey(zkey)
    facts: dict[str, Any] = {
        "schema": 1,
        "key": str(zkey),
        "sha256": key.sha256,
        "protocol": "groth16",
        "curve": "bn128",
        "wires": key.n_vars,
        "public": key.n_public,
        "domain": key.domain_size,
        "coefficients": len(key.coefficients),
        "at_infinity": {name: int((~rows.any(axis=1)).sum()) for name, rows in key.sections.items()},
        "contributions": contribution_names(key.contributions),
        "checked": check,
    }
    if check:
        _check_points(key)
    if as_json:
        click.echo(page_json(facts, indent=2))
    else:
        for name, value in facts.items():
            if name != "schema":
                click.echo(f"{name:14}{', '.join(map(str, value)) if isinstance(value, list) else value}")
    return 0


def _check_points(key: "ZKey") -> None:
    from evenload.gpu.llvm.programs import best_level
    from evenload.zk.key import CpuKey

    CpuKey.load(key, best_level())


@click.command()
@click.argument("zkey", type=PATH)
@click.argument("r1cs", type=PATH)
def check(zkey: Path, r1cs: Path) -> int:
    """Say whether ZKEY is a key of the circuit R1CS: by its sizes and matrices A and B. Exit code 0: it is,
    1: not.

    That the points of the key are right, and of its matrix C, is what its ceremony proves: for those have
    `snarkjs zkey verify` check it, with the powers of tau.
    """
    from evenload.zk.formats.r1cs import read_r1cs
    from evenload.zk.formats.zkey import read_zkey
    from evenload.zk.key_terms import why_not_of

    why_not = why_not_of(read_zkey(zkey), read_r1cs(r1cs))
    click.echo(f"not a key of this circuit: {why_not}" if why_not else "a key of this circuit")
    return 1 if why_not else 0


@click.command()
@click.argument("zkey", type=PATH)
@click.option("-o", "--out", type=PATH, help="Write here instead of to stdout.")
def vkey(zkey: Path, out: Path | None) -> int:
    """Export the verification key of ZKEY as snarkjs does."""
    from evenload.zk.formats.zkey import read_zkey

    text = read_zkey(zkey).verification_key.to_json()
    if out:
        write_named(out, text)
    else:
        click.echo(text)
    return 0


@click.command()
@click.argument("key", type=PATH)
@click.option("--name", default="Groth16Verifier", show_default=True, help="What the contract is called.")
@click.option("-o", "--out", type=PATH, help="Write here instead of to stdout.")
def solidity(key: Path, name: str, out: Path | None) -> int:
    """Write a contract that verifies proofs of KEY (vkey.json or a .zkey), with snarkjs's calldata."""
    from evenload.zk.solidity import verifier_contract

    text = verifier_contract(read_key(key), name)
    if out:
        write_named(out, text)
    else:
        click.echo(text, nl=False)
    return 0


@click.command()
@click.argument("public", type=PATH)
@click.argument("proof", type=PATH)
def calldata(public: Path, proof: Path) -> int:
    """Print PROOF and PUBLIC as the arguments of a contract's verifyProof, as snarkjs exports calldata."""
    from evenload.zk.solidity import calldata_text

    click.echo(calldata_text(*_statement(public, proof)))
    return 0


@click.command()
@click.argument("r1cs", type=PATH)
@click.option("-o", "--out", type=PATH, required=True, help="The key to write (.zkey).")
@click.option("--seed", help="Derive the trapdoor from this text, to get the same key each time.")
@click.option("-q", "--quiet", is_flag=True, help="Leave out the steps (the warning stays).")
def devsetup(r1cs: Path, out: Path, seed: str | None, quiet: bool) -> int:
    """Make an INSECURE key for R1CS, for tests and benchmarks. Whoever runs this can forge proofs.

    The key names the warning as its only contribution. For real use, run a ceremony with snarkjs.
    """
    from evenload.zk.devsetup import WARNING, dev_setup
    from evenload.zk.formats.r1cs import read_r1cs
    from evenload.zk.formats.zkey import write_zkey

    click.echo(WARNING, err=True)
    say = None if quiet else lambda step: click.echo(f"making {step} ...", err=True)
    write_zkey(out, dev_setup(read_r1cs(r1cs), seed, say))
    click.echo(str(out))
    return 0


@click.command()
@click.argument("kind", type=click.Choice(["chain", "poseidon", "sha256"]))
@click.option(
    "--size", type=click.IntRange(1, 1 << 28), required=True, help="Constraints, depth of the tree, or bytes."
)
@click.option("-o", "--out", type=PATH, required=True, help="A folder for both files.")
def circuit(kind: str, size: int, out: Path) -> int:
    """Write a circuit of ours and a witness: circuit.r1cs and witness.wtns.

    \b
    chain     SIZE squarings            poseidon  membership in a Poseidon tree of depth SIZE
    sha256    the preimage of SIZE bytes
    """
    from evenload.zk.formats.r1cs import write_r1cs
    from evenload.zk.formats.witness import witness_from_integers, write_witness

    r1cs, witness = _make_circuit(kind, size)
    out.mkdir(parents=True, exist_ok=True)
    write_r1cs(out / "circuit.r1cs", r1cs)
    write_witness(out / "witness.wtns", witness_from_integers(witness))
    click.echo(f"{out}: {r1cs.n_constraints} constraints, {r1cs.n_wires} wires")
    return 0


def _make_circuit(kind: str, size: int) -> Any:
    from evenload.zk.circuits import poseidon_inclusion, sha256_preimage, squaring_chain
    from evenload.zk.circuits.merkle import inclusion_inputs
    from evenload.zk.circuits.sha256 import sha256_inputs

    if kind == "chain":
        return squaring_chain(size)
    if kind == "poseidon":
        if size > 64:
            raise ConfigError(
                f"a tree of depth {size} has more leaves than anybody needs", hint="--size 1 to 64"
            )
        made = poseidon_inclusion(size)
        return made.r1cs(), made.solve(inclusion_inputs(1, list(range(2, size + 2)), 5)[0])
    made = sha256_preimage(size)
    return made.r1cs(), made.solve(sha256_inputs(bytes(k % 251 for k in range(size))))


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
    click.echo(page_json(page) if as_json else "\n".join(lines))
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
