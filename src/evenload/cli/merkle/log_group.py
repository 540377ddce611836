"""``evenload merkle log``: a transparency log in a folder, its checkpoints, and proofs of it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenload._private_files import write_named
from evenload.cli.merkle.leaf_file import LeafInput, leaf_options
from evenload.cli.options import FILE, FOLDER, json_option, page_json
from evenload.errors import ConfigError, EvenloadError, FormatError, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_TEXT_BYTES = 2_000_000
key_option = click.option(
    "--key", "keys", multiple=True, required=True, help="The log's verifier key, as keygen printed it."
)
witness_option = click.option(
    "--witness", "witnesses", multiple=True, help="A witness's verifier key; it has to have cosigned."
)
at_least_option = click.option(
    "--at-least", type=click.IntRange(1), metavar="K", help="Of the witnesses, so many are enough."
)
origin_option = click.option("--origin", help="The log's name, if it is not that of its key.")


@click.group("log")
def log() -> None:
    """A transparency log: leaves that are only ever added, under signed checkpoints.

    Its folder is in the formats of C2SP (tlog-tiles, tlog-checkpoint), and any web server can serve it.
    """


@log.command()
@click.argument("name")
@click.option("-o", "--out", type=FILE, required=True, help="Write the secret key to this new file.")
def keygen(name: str, out: Path) -> int:
    """Make a key for the log NAME, such as example.com/log; print the verifier key, for all to know."""
    from evenload.merkle import SigningKey

    key = SigningKey.make(name)
    key.write(out)
    click.echo(str(key.verifier))
    return 0


@log.command()
@click.argument("folder", type=FOLDER)
@leaf_options
@click.option("--origin", help="Begin a log of this name if there is none in FOLDER.")
@json_option
def append(folder: Path, leaves: LeafInput, origin: str | None, as_json: bool) -> int:
    """Add the leaves of FILE to the log in FOLDER; print how many it has when all are on disk."""
    from evenload.merkle import Log

    if leaves.types:
        raise ConfigError("--types belongs to openzeppelin trees", hint="leave it out")
    with Log(folder, origin=origin) as opened:
        first = len(opened)
        try:
            for some in _batches(leaves):
                opened.append(some)
        except EvenloadError as error:
            if added := len(opened) - first:
                rest = (
                    f"the first {added} leaves of {printable(leaves.file)} were added: append the rest alone"
                )
                error.hint = f"{error.hint}; {rest}" if error.hint else rest
            raise
        page = {"schema": 1, "origin": opened.origin, "added": len(opened) - first, "size": len(opened)}
    click.echo(page_json(page) if as_json else page["size"])
    return 0


def _batches(leaves: LeafInput) -> "Iterator[list[bytes]]":
    """Leaves as the file has them, in pieces that fit memory."""
    from itertools import islice

    if leaves.is_text:
        lines = _lines(leaves)
        while some := list(islice(lines, 1 << 14)):
            yield some
        return
    for rows in leaves.blocks():
        for start in range(0, len(rows), 1 << 14):
            yield [row.tobytes() for row in rows[start : start + (1 << 14)]]


def _lines(leaves: LeafInput) -> "Iterator[bytes]":
    """The leaves of a text, each checked where its line is known."""
    from evenload.merkle.log.tiles import MOST_ENTRY_BYTES

    for number, leaf in enumerate(leaves.text_leaves(), 1):
        if len(leaf) > MOST_ENTRY_BYTES:
            raise ConfigError(
                f"line {number} has {len(leaf):,} bytes, and a log's leaf at most {MOST_ENTRY_BYTES:,}",
                hint="log its hash in its place",
            )
        yield leaf


@log.command()
@click.argument("folder", type=FOLDER)
@click.option("--key", "key_file", type=FILE, required=True, help="The file of the log's signing key.")
def sign(folder: Path, key_file: Path) -> int:
    """Sign a checkpoint of all leaves, and publish it with its tiles in FOLDER. Prints the checkpoint."""
    from evenload.merkle import Log, SigningKey

    key = SigningKey.read(key_file)
    with Log(folder) as opened:
        click.echo(opened.checkpoint(key), nl=False)
    return 0


@log.command()
@click.argument("folder", type=FOLDER)
@click.argument("index", type=int, required=False)
@click.option(
    "--grown-from", type=int, metavar="SIZE", help="Prove that the first SIZE leaves are as they were."
)
@click.option("-o", "--out", type=FILE, help="Write the proof there.")
def prove(folder: Path, index: int | None, grown_from: int | None, out: Path | None) -> int:
    """Prove that leaf INDEX is under the last checkpoint, or that the log only grew.

    The proof has the checkpoint in it (C2SP tlog-proof; for growth, the request that witnesses take).
    """
    from evenload.merkle import Log

    if (index is None) == (grown_from is None):
        raise ConfigError("one thing is proved at a time", hint="give INDEX or --grown-from SIZE")
    with Log(folder, is_writable=False) as opened:
        text = opened.growth_text(grown_from) if index is None else opened.inclusion_text(index)  # pyrefly: ignore
    if out is None:
        click.echo(text, nl=False)
        return 0
    write_named(out, text)
    click.echo(str(out))
    return 0


@log.command()
@click.argument("proof", type=FILE)
@key_option
@witness_option
@at_least_option
@origin_option
@click.option("--leaf", help="Your leaf, in hexadecimal.")
@click.option("--leaf-file", type=FILE, help="Your leaf, the content of this file.")
@click.option(
    "--old-checkpoint", type=FILE, help="The checkpoint that you saw before, for a proof of growth."
)
@json_option
def verify(
    proof: Path, keys: tuple[str, ...], witnesses: tuple[str, ...], at_least: int | None, origin: str | None,
    leaf: str | None, leaf_file: Path | None, old_checkpoint: Path | None, as_json: bool,
) -> int:  # fmt: skip
    """Check a PROOF that this or another program made. Exit code 0: it is valid, 1: it is not."""
    from evenload.merkle.log import checkpoint
    from evenload.merkle.scheme import from_hex

    if sum(given is not None for given in (leaf, leaf_file, old_checkpoint)) != 1:
        raise ConfigError(
            "a proof says nothing by itself", hint="give --leaf, --leaf-file or --old-checkpoint, one of them"
        )
    known = _known(keys, witnesses, at_least)
    text = _content(proof)
    read: Any = checkpoint.read_inclusion if old_checkpoint is None else checkpoint.read_growth
    *_, found = read(text, known, origin=origin)  # says what is wrong with a text that can be no proof
    if old_checkpoint is not None:
        is_valid = checkpoint.verify_growth(text, _content(old_checkpoint), known, origin=origin)
    else:
        mine = _content(leaf_file) if leaf_file is not None else from_hex(leaf, "--leaf", None)
        is_valid = checkpoint.verify_inclusion(text, mine, known, origin=origin)
    page = {
        "schema": 1,
        "valid": is_valid,
        "origin": found.origin,
        "size": found.size,
        "root": found.root.hex(),
    }
    click.echo(page_json(page) if as_json else "valid" if is_valid else "not valid")
    return 0 if is_valid else 1


@log.command()
@click.argument("folder", type=FOLDER)
@key_option
@witness_option
@at_least_option
@origin_option
@json_option
def check(
    folder: Path, keys: tuple[str, ...], witnesses: tuple[str, ...], at_least: int | None, origin: str | None,
    as_json: bool,
) -> int:  # fmt: skip
    """Check all that a log has published in FOLDER: signatures, entries, every node of its tiles."""
    from evenload.merkle import check_published

    found = check_published(folder, _known(keys, witnesses, at_least), origin=origin)
    page = {"schema": 1, "origin": found.origin, "size": found.size, "root": found.root.hex()}
    click.echo(page_json(page) if as_json else f"{found.size} leaves, as {found.origin} has signed")
    return 0


@log.command()
@click.argument("folder", type=FOLDER)
@click.argument("lines", type=FILE)
@click.option("--witness", "witnesses", multiple=True, required=True, help="A witness's verifier key.")
def cosign(folder: Path, lines: Path, witnesses: tuple[str, ...]) -> int:
    """Publish the last checkpoint with the LINES that witnesses answered to it. Prints the checkpoint."""
    from evenload.merkle import Log

    with Log(folder) as opened:
        click.echo(opened.cosigned(_content(lines), witnesses), nl=False)
    return 0


def _known(keys: tuple[str, ...], witnesses: tuple[str, ...], at_least: int | None) -> Any:
    """The keys as a rule of who has to have signed. Raises ConfigError for what is no key."""
    from evenload.merkle import Quorum, VerifierKey

    if witnesses:
        return Quorum(keys, witnesses, at_least)
    if at_least is not None:
        raise ConfigError("--at-least counts witnesses, and none is given", hint="name them: --witness KEY")
    return [VerifierKey.parse(key) for key in keys]


def _content(path: Path) -> bytes:
    from evenload._private_files import read_plain

    try:
        return read_plain(path, MOST_TEXT_BYTES)
    except OSError as error:
        raise FormatError(f"{printable(str(path))} cannot be read: {error.strerror}") from error
