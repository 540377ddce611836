"""A file of leaves, and the kind of tree over them, as the command line names both."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from evenload._bounded_json import parse_json
from evenload._private_files import lines_within, open_named
from evenload.cli.options import argument, option, passed_as, scheme_option, shared
from evenload.errors import ConfigError, FormatError, reason_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from evenload.merkle import Scheme

MOST_BYTES = 1 << 30  # of values, which are held in memory
MOST_LINE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class TreeKind:
    """The kind of tree that the command line asks for."""

    scheme: str = shared(scheme_option)
    person: str = option(
        "--person", default="", help="rfc6962-blake2s: personalisation, up to 8 bytes of text."
    )
    depth: int | None = option("--depth", type=int, help="poseidon: levels, filled up with zeros.")

    def to_scheme(self) -> "Scheme":
        """The scheme, as the library takes it. Raises UnknownName, ConfigError."""
        from evenload.merkle import Scheme

        return Scheme(self.scheme, person=self.person.encode(), depth=self.depth)


@dataclass(frozen=True, slots=True)
class LeafInput:
    """A file of leaves, or - for standard input, and how the leaves are written in it."""

    file: str = argument(type=click.Path(allow_dash=True))
    width: int = option(
        "--width",
        default=32,
        show_default=True,
        type=click.IntRange(1, 1 << 30),
        help="Bytes per record of a binary file (not .npy).",
    )
    lines: bool = option("--lines", is_flag=True, help="One leaf a line, as it stands.")
    as_hex: bool = option("--hex", is_flag=True, help="One leaf a line, in hexadecimal.")
    reverse: bool = option(
        "--reverse", is_flag=True, help="Leaves and root are written backwards, as Bitcoin shows them."
    )
    types: str | None = option(
        "--types", help="openzeppelin: FILE is a JSON list of values, such as address,uint256[]."
    )

    @property
    def is_text(self) -> bool:
        """Whether a line is a leaf."""
        return self.lines or self.as_hex

    @property
    def path(self) -> Any:
        """What the readers of binary files take: the path, or standard input."""
        return sys.stdin.buffer if self.file == "-" else self.file

    def shown(self, digest: bytes) -> str:
        """A digest in hexadecimal, backwards if the leaves are."""
        return (digest[::-1] if self.reverse else digest).hex()

    def require_binary(self, why: str) -> None:
        """Raises ConfigError that says ``why`` if this is no binary file on disk."""
        if self.file == "-" or self.is_text or self.types:
            raise ConfigError(why, hint="leave out --lines, --hex, --types and -")

    def text_leaves(self) -> Iterator[bytes]:
        """Yield the leaves of a text file, without the ends of the lines. Raises ConfigError."""
        from evenload.merkle.scheme import from_hex

        if self.lines and self.as_hex:
            raise ConfigError("--lines and --hex exclude each other")
        step = -1 if self.reverse else 1
        try:
            with self._open() as source:
                for number, line in enumerate(lines_within(source, self.file, MOST_LINE_BYTES), 1):
                    leaf = line.rstrip(b"\r\n")
                    if self.as_hex:
                        leaf = from_hex(leaf.decode("ascii", "replace").strip(), f"line {number}", None)
                    yield leaf[::step]
        except OSError as error:
            raise ConfigError(f"{self.file} cannot be read: {error.strerror}") from error

    def blocks(self) -> "Iterator[NDArray[np.uint8]]":
        """Yield the records of a binary file as rows [n, width]. Raises ConfigError if types are given."""
        from evenload.merkle.stream import read_rows

        if self.types:
            raise ConfigError("--types belongs to --scheme openzeppelin")
        yield from read_rows(self.path, self.width)

    def all_leaves(self) -> Any:
        """All leaves of an openzeppelin tree, with values encoded by their types."""
        import numpy as np

        if self.is_text:
            return list(self.text_leaves())
        if not self.types:
            blocks = [rows.copy() for rows in self.blocks()]
            return np.concatenate(blocks) if blocks else np.empty((0, self.width), np.uint8)
        from evenload.merkle.abi import encode, split_types

        try:
            with self._open() as source:
                values = parse_json(source.read(MOST_BYTES + 1), self.file, MOST_BYTES)
        except (OSError, FormatError) as error:
            raise ConfigError(f"{self.file} is no JSON list of values: {reason_of(error)}") from error
        types = split_types(self.types.replace(" ", ""))
        if not isinstance(values, list) or not all(isinstance(row, list) for row in values):
            raise ConfigError(f"{self.file} is no list of lists", hint='write [["0x…", "5"], …]')
        return [encode(types, row) for row in values]

    def _open(self) -> BinaryIO:
        return sys.stdin.buffer if self.file == "-" else open_named(self.file)


scheme_options = passed_as(TreeKind, "kind")
leaf_options = passed_as(LeafInput, "leaves")
