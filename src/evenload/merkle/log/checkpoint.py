"""Checkpoints: origin, size and root of a log, as a signed note; and proofs with the checkpoint that they are
under, as text that clients and witnesses of other makers read.

Sources: C2SP tlog-checkpoint v1, tlog-proof v1 (a leaf), and the request of tlog-witness (growth).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from evenload._arguments import whole
from evenload.errors import ConfigError, FormatError, quoted
from evenload.merkle.log.keys import base64_of, from_base64
from evenload.merkle.log.note import MOST_NOTE_BYTES, Keys, signers, text_of
from evenload.merkle.proof import ConsistencyProof, InclusionProof
from evenload.merkle.scheme import DIGEST_BYTES, MAX_DEPTH, Scheme

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


HEAD = "c2sp.org/tlog-proof@v1"
RFC6962 = Scheme("rfc6962")


def inclusion_text(proof: InclusionProof, note: str) -> str:
    """The text of a proof that a leaf is in the log of the checkpoint in ``note``."""
    return (
        "".join(f"{line}\n" for line in (HEAD, f"index {proof.index}", *map(base64_of, proof.path), ""))
        + note
    )


def growth_text(old_size: int, path: Sequence[bytes], note: str) -> str:
    """The text of a proof that the log of the checkpoint in ``note`` begins with its first leaves."""
    return "".join(f"{line}\n" for line in (f"old {old_size}", *map(base64_of, path), "")) + note


def read_inclusion(
    text: str | bytes, keys: Keys, *, origin: str | None = None
) -> tuple[InclusionProof, Checkpoint]:
    """(proof, checkpoint) of a text, the checkpoint's signature checked and the proof not yet.

    Raises FormatError with the reason for anything else; ConfigError for keys that are none.
    """
    lines, note = _halves(text)
    found = read_checkpoint(note, keys, origin=origin)
    if lines[:1] != [HEAD]:
        raise FormatError(f"the proof does not begin with {HEAD}")
    lines = lines[2:] if len(lines) > 1 and lines[1].startswith("extra ") else lines[1:]
    index = _numbered(lines, "index ")
    try:
        return InclusionProof(RFC6962, index, found.size, _path(lines[1:])), found
    except ConfigError as error:
        raise FormatError(error.message) from error


def read_growth(
    text: str | bytes, keys: Keys, *, origin: str | None = None
) -> tuple[int, tuple[bytes, ...], Checkpoint]:
    """(old size, path, checkpoint) of a text, the checkpoint's signature checked and the proof not yet.

    Raises FormatError with the reason for anything else; ConfigError for keys that are none.
    """
    lines, note = _halves(text)
    found = read_checkpoint(note, keys, origin=origin)
    return _numbered(lines, "old "), _path(lines[1:]), found


def verify_inclusion(text: str | bytes, leaf: bytes, keys: Keys, *, origin: str | None = None) -> bool:
    """Whether a log that one of ``keys`` signs for has ``leaf``, by the proof in ``text``.

    Never raises for a text, leaf or key that is wrong: it is False. Raises MissingExtra without cryptography.
    """
    try:
        proof, found = read_inclusion(text, keys, origin=origin)
    except (FormatError, ConfigError):
        return False
    try:
        content = bytes(leaf) if isinstance(leaf, bytes | bytearray | memoryview) else None
    except ValueError:  # a view that was released
        return False
    return content is not None and proof.verify(content, found.root, found.size)


def verify_growth(
    text: str | bytes, old: Checkpoint | str | bytes, keys: Keys, *, origin: str | None = None
) -> bool:
    """Whether the log of ``old``, a checkpoint or its note, only grew to that of the proof in ``text``.

    Never raises for a text, checkpoint or key that is wrong: it is False. Raises MissingExtra.
    """
    try:
        old_size, path, new = read_growth(text, keys, origin=origin)
        before = old if isinstance(old, Checkpoint) else read_checkpoint(old, keys, origin=origin)
        if (old_size, new.origin) != (before.size, before.origin):
            return False
        if not old_size:
            return not path and before.root == RFC6962.empty_root()
        return ConsistencyProof(RFC6962, old_size, new.size, path).verify(before.root, new.root)
    except (FormatError, ConfigError):
        return False


def _halves(text: str | bytes) -> tuple[list[str], str]:
    """The lines of the proof, and the note behind the first empty line."""
    proof, cut, note = text_of(text, "proof", 2 * MOST_NOTE_BYTES).partition("\n\n")
    if not cut:
        raise FormatError("a proof is lines, an empty line, and a checkpoint; this is none")
    return proof.split("\n"), note


def _numbered(lines: Sequence[str], word: str) -> int:
    if not lines or not lines[0].startswith(word):
        raise FormatError(f"the proof has no line {quoted(word)} with a number")
    return number_in(lines[0].removeprefix(word), f"the number behind {quoted(word)}")


def _path(lines: Sequence[str]) -> tuple[bytes, ...]:
    if len(lines) > MAX_DEPTH + 1:
        raise FormatError(f"the proof has {len(lines)} nodes, and no log needs more than {MAX_DEPTH + 1}")
    nodes = [from_base64(line) for line in lines]
    for line, node in zip(lines, nodes, strict=True):
        if node is None or len(node) != DIGEST_BYTES:
            raise FormatError(f"{quoted(line)} is not {DIGEST_BYTES} bytes of base64")
    return tuple(node for node in nodes if node is not None)
