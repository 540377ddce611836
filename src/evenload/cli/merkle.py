"""``evenload merkle``: roots and proofs of files, checked anywhere."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar, cast

import click

from evenload.cli.bench.merkle import merkle_bench
from evenload.errors import ConfigError

if TYPE_CHECKING:
    from evenload.merkle import Scheme
    from evenload.merkle.partition import ParallelRoot

__all__ = ["merkle"]

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def merkle() -> None:
    """Merkle trees of files: roots, proofs, and checks of proofs.

    Schemes: rfc6962 (SHA-256, as in Certificate Transparency), bitcoin, openzeppelin (Keccak-256,
    StandardMerkleTree), poseidon (over BN254), blake2s.
    """


merkle.add_command(merkle_bench, "bench")


def scheme_options(command: F) -> F:
    """What kind of tree it is."""
    for option in (
        click.option("--depth", type=int, help="poseidon: levels, filled up with zeros."),
        click.option("--person", default="", help="blake2s: personalisation, up to 8 bytes of text."),
        click.option("--scheme", default="rfc6962", show_default=True, help="Which kind of tree."),
    ):
        command = option(command)
    return command


def leaf_options(command: F) -> F:
    """How leaves stand in the file."""
    for option in (
        click.option("--types", help="openzeppelin: FILE is a JSON list of values, such as address,uint256."),
        click.option(
            "--reverse", is_flag=True, help="Leaves and root are written backwards, as Bitcoin shows them."
        ),
        click.option("--hex", "as_hex", is_flag=True, help="One leaf a line, in hexadecimal."),
        click.option("--lines", is_flag=True, help="One leaf a line, as it stands."),
        click.option(
            "--width", default=32, show_default=True, help="Bytes per record of a binary file (not .npy)."
        ),
    ):
        command = option(command)
    return command


@merkle.command()
@click.argument("file", type=click.Path(allow_dash=True))
@scheme_options
@leaf_options
@click.option("--devices", help="Hash on these devices together: all, cpu*2, wgpu:0. FILE must be binary.")
@click.option("--strategy", default="measured", show_default=True, help="How blocks are dealt to --devices.")
@click.option("--dash", "has_dash", is_flag=True, help="With --devices: show it in the browser.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def root(
    file: str, scheme: str, person: str, depth: int | None, devices: str | None, strategy: str,
    has_dash: bool, as_json: bool, **how: Any,
) -> int:  # fmt: skip
    """Print the root of the leaves in FILE, or in what comes on stdin (-).

    A binary file is read once, in 16 MiB of memory. A .npy file must hold uint8 [n, width].
    """
    chosen = _scheme(scheme, person, depth)
    page: dict[str, Any] = {"schema": 1, "scheme": scheme}
    if devices is not None:
        _refuse_text(file, how, "--devices maps a binary file")
        done = _root_over(devices, file, has_dash, scheme=chosen, width=how["width"], strategy=strategy)
        digest, size, is_mutated = done.root, done.size, done.is_mutated
        summary = done.parts.summary
        page |= {"wall_s": done.parts.wall_s, "bound_s": summary.bound_s, "devices": list(summary.devices)}
    elif has_dash:
        raise ConfigError("--dash shows the work of devices", hint="say which: --devices all")
    elif chosen.odd == "heap":
        from evenload.merkle import StandardTree

        tree = StandardTree(_leaves(file, how))
        digest, size, is_mutated = tree.root, len(tree), False
    else:
        from evenload.merkle import RootStream
        from evenload.merkle.stream import read_rows

        stream = RootStream(chosen)
        if how["lines"] or how["as_hex"]:
            stream.update_records(_lines(file, how))
        else:
            _refuse_types(how)
            for rows in read_rows(_binary(file), how["width"]):
                stream.update(rows)
        digest, size, is_mutated = stream.root(), len(stream), stream.is_mutated
    text = _shown(digest, how)
    if is_mutated:
        click.echo("warning: equal neighbours: leaves may be repeated (CVE-2012-2459)", err=True)
    page |= {"leaves": size, "root": text, "mutated": is_mutated}
    click.echo(json.dumps(page) if as_json else text)
    return 0


def _root_over(devices: str, file: str, has_dash: bool, **how: Any) -> "ParallelRoot":
    """The root, hashed by ``devices`` together, as a run that can be watched."""
    from evenload.cli.monitoring.monitoring import recorded
    from evenload.cli.monitoring.step_events import Steps
    from evenload.executor import Executor
    from evenload.merkle import parallel_root

    name = f"merkle {Path(file).name}"
    with (
        recorded(name, has_dash) as log,
        Steps(log, name, "hash", None, None),
        Executor(devices, events=log) as executor,
    ):
        return parallel_root(file, executor=executor, **how)


@merkle.command()
@click.argument("file", type=click.Path(allow_dash=True))
@click.argument("indices", nargs=-1, type=int, metavar="[INDEX]...")
@scheme_options
@leaf_options
@click.option(
    "--grown-from", type=int, metavar="SIZE", help="Prove that FILE begins with its first SIZE leaves."
)
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Write the proofs there.")
def prove(
    file: str, indices: tuple[int, ...], scheme: str, person: str, depth: int | None, grown_from: int | None,
    out: Path | None, **how: Any,
) -> int:  # fmt: skip
    """Prove that the leaves INDEX are in the tree of FILE; one JSON object a line.

    For openzeppelin, several leaves give one multiproof.
    """
    chosen = _scheme(scheme, person, depth)
    if not indices and grown_from is None:
        raise ConfigError("nothing to prove", hint="name leaves by their index, or use --grown-from")
    proofs: list[Any]
    if chosen.odd == "heap":
        from evenload.merkle import StandardTree

        if grown_from is not None:
            raise ConfigError("an openzeppelin tree has no consistency proofs", hint="use rfc6962 or blake2s")
        tree = StandardTree(_leaves(file, how))
        proofs = [tree.prove(indices[0]) if len(indices) == 1 else tree.prove_many(indices)]
    else:
        from evenload.merkle import MerkleTree

        grown = MerkleTree(scheme=chosen)
        if how["lines"] or how["as_hex"]:
            grown.append_records(_lines(file, how))
        else:
            _refuse_types(how)
            _append_file(grown, file, how)
        proofs = [*grown.prove_many(indices)]
        if grown_from is not None:
            proofs.append(grown.prove_consistency(grown_from))
    text = "".join(json.dumps(proof.to_json()) + "\n" for proof in proofs)
    if out is None:
        click.echo(text, nl=False)
        return 0
    try:
        out.write_text(text)
    except OSError as error:
        raise ConfigError(f"-o {out}: {error.strerror}") from error
    click.echo(str(out))
    return 0


@merkle.command()
@click.argument("proofs", type=click.Path(path_type=Path))
@click.option("--root", "root_text", required=True, help="The root that you trust, in hexadecimal.")
@click.option("--old-root", help="The older root that you trust, for a proof of growth.")
@click.option("--size", type=int, help="Leaves of the tree, if you know. Give it for bitcoin and poseidon.")
@click.option(
    "--leaf", "leaves", multiple=True, help="Your leaf in hexadecimal, one for each that is proved."
)
@click.option("--leaf-hash", "hashes", multiple=True, help="Its hash instead, computed by yourself.")
@click.option(
    "--reverse", is_flag=True, help="Roots and leaves are written backwards, as Bitcoin shows them."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify(
    proofs: Path, root_text: str, old_root: str | None, leaves: tuple[str, ...], hashes: tuple[str, ...],
    size: int | None, reverse: bool, as_json: bool,
) -> int:  # fmt: skip
    """Check the PROOFS in a file against a root. Exit code 0: all are valid, 1: one is not.

    A proof says nothing without a root from elsewhere, and nothing about a leaf that you do not give: the
    leaf hash in the file is only a remark. Leaves of several proofs are given in the proofs' order.
    """
    from evenload.merkle.check import Claims, check_proofs
    from evenload.merkle.scheme import from_hex

    step = -1 if reverse else 1
    claims = Claims(
        from_hex(root_text, "--root")[::step],
        None if old_root is None else from_hex(old_root, "--old-root")[::step],
        [from_hex(leaf, "--leaf", None)[::step] for leaf in leaves],
        [from_hex(node, "--leaf-hash")[::step] for node in hashes],
        size,
    )
    try:
        text = proofs.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{proofs} cannot be read: {error}") from error
    answers = check_proofs(text.splitlines(), claims)
    is_valid = all(answers)
    if as_json:
        click.echo(json.dumps({"schema": 1, "valid": is_valid, "proofs": answers}))
    else:
        n_wrong = answers.count(False)
        click.echo("valid" if is_valid else f"not valid: {n_wrong} of {len(answers)}")
    return 0 if is_valid else 1


def _scheme(name: str, person: str, depth: int | None) -> "Scheme":
    from evenload.merkle import Scheme

    return Scheme(name, person=person.encode(), depth=depth)


def _shown(digest: bytes, how: dict[str, Any]) -> str:
    return (digest[::-1] if how["reverse"] else digest).hex()


def _refuse_text(file: str, how: dict[str, Any], why: str) -> None:
    if file == "-" or how["lines"] or how["as_hex"] or how["types"]:
        raise ConfigError(why, hint="leave out --lines, --hex, --types and -")


def _refuse_types(how: dict[str, Any]) -> None:
    if how["types"]:
        raise ConfigError("--types belongs to --scheme openzeppelin")


def _opened(file: str) -> IO[bytes]:
    return cast(IO[bytes], click.open_file(file, "rb"))


def _binary(file: str) -> Any:
    return sys.stdin.buffer if file == "-" else file


def _lines(file: str, how: dict[str, Any]) -> Iterator[bytes]:
    """Leaves of a text file, without the ends of the lines."""
    from evenload.merkle.scheme import from_hex

    if how["lines"] and how["as_hex"]:
        raise ConfigError("--lines and --hex exclude each other")
    step = -1 if how["reverse"] else 1
    try:
        with _opened(file) as source:
            for number, line in enumerate(source, 1):
                leaf = line.rstrip(b"\r\n")
                if how["as_hex"]:
                    leaf = from_hex(leaf.decode("ascii", "replace").strip(), f"line {number}", None)
                yield leaf[::step]
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error


def _leaves(file: str, how: dict[str, Any]) -> Any:
    """All leaves of an openzeppelin tree."""
    import numpy as np

    from evenload.merkle.stream import read_rows

    if how["lines"] or how["as_hex"]:
        return list(_lines(file, how))
    if not how["types"]:
        blocks = [rows.copy() for rows in read_rows(_binary(file), how["width"])]
        return np.concatenate(blocks) if blocks else np.empty((0, how["width"]), np.uint8)
    from evenload.merkle.abi import encode

    try:
        with _opened(file) as source:
            values = json.loads(source.read())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} is no JSON list of values: {error}") from error
    types = [kind.strip() for kind in how["types"].split(",")]
    if not isinstance(values, list) or not all(isinstance(row, list) for row in values):
        raise ConfigError(f"{file} is no list of lists", hint='write [["0x…", "5"], …]')
    return [encode(types, row) for row in values]


def _append_file(tree: Any, file: str, how: dict[str, Any]) -> None:
    from evenload.merkle.stream import read_rows

    for rows in read_rows(_binary(file), how["width"]):
        tree.append(rows)
