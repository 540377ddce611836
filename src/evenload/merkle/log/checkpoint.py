"""Checkpoints: origin, size and root of a log, as a signed note. Source: C2SP tlog-checkpoint v1."""

import re
from dataclasses import dataclass

from evenload._arguments import whole
from evenload.errors import ConfigError, FormatError, quoted
from evenload.merkle.log.keys import base64_of, from_base64
from evenload.merkle.log.note import Keys, signers
from evenload.merkle.scheme import DIGEST_BYTES

MOST_SIZE = (1 << 62) - 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A statement of a log: with ``size`` leaves, its root was ``root``.

    origin      the log's name
    root        32 bytes: RFC 6962's tree of SHA-256
    extensions  further lines, which nobody has to understand
    Raises ConfigError for values that no checkpoint can hold.
    """

    origin: str
    size: int
    root: bytes
    extensions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not is_origin(self.origin):
            raise ConfigError(f"{quoted(self.origin)} is no origin", hint="write example.com/log")
        whole("size", self.size, most=MOST_SIZE)
        if not isinstance(self.root, bytes) or len(self.root) != DIGEST_BYTES:
            raise ConfigError(f"the root is {quoted(self.root)}, not {DIGEST_BYTES} bytes")
        if not all(is_origin(line) for line in self.extensions):
            raise ConfigError("a line of extension is empty or has control characters")

    @property
    def text(self) -> str:
        """The lines that are signed."""
        lines = (self.origin, str(self.size), base64_of(self.root), *self.extensions)
        return "".join(f"{line}\n" for line in lines)

    @classmethod
    def parse(cls, text: str) -> "Checkpoint":
        """The checkpoint of a note's text. Raises FormatError."""
        lines = text.split("\n")
        if len(lines) < 4 or lines[-1] or not all(lines[:-1]):
            raise FormatError("a checkpoint has an origin, a size and a root, each on a line; this has not")
        root = from_base64(lines[2])
        if root is None or len(root) != DIGEST_BYTES:
            raise FormatError(
                f"the checkpoint's root {quoted(lines[2])} is not {DIGEST_BYTES} bytes of base64"
            )
        try:
            return cls(lines[0], number_in(lines[1], "the checkpoint's size"), root, tuple(lines[3:-1]))
        except ConfigError as error:
            raise FormatError(error.message) from error


def is_origin(line: object) -> bool:
    """Whether it can be a line of a note."""
    return isinstance(line, str) and 0 < len(line) <= 4096 and not any(letter < " " for letter in line)


def number_in(text: str, what: str) -> int:
    """A number in decimal digits, without leading zeros. Raises FormatError."""
    if not re.fullmatch("0|[1-9][0-9]{0,18}", text, re.ASCII) or int(text) > MOST_SIZE:
        raise FormatError(f"{what} is {quoted(text)}, no number from 0 to {MOST_SIZE}")
    return int(text)


def read_checkpoint(note: str | bytes, keys: Keys, *, origin: str | None = None) -> Checkpoint:
    """The checkpoint of a note that a log has signed.

    keys    the log's verifier key, or several, of which one has to have signed; or a ``Quorum``
    origin  what the checkpoint has to say it is of; None: the name of a key that has signed it, so that one
            log's key cannot speak for another's
    Raises FormatError with the reason if it is not so; ConfigError for keys that are none, and MissingExtra.
    """
    text, known = signers(note, keys)
    found = Checkpoint.parse(text)
    wanted = [key.name for key in known] if origin is None else [origin]
    if found.origin not in wanted:
        raise FormatError(f"the checkpoint is of {quoted(found.origin)}, not of {quoted(wanted[0])}")
    return found


def verify_checkpoint(note: str | bytes, keys: Keys, *, origin: str | None = None) -> bool:
    """Whether ``read_checkpoint`` would return one; False for what is no note or key. Raises MissingExtra."""
    try:
        read_checkpoint(note, keys, origin=origin)
    except (FormatError, ConfigError):
        return False
    return True
