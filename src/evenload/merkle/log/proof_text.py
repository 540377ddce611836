"""Proofs with the checkpoint that they are under, as text that clients and witnesses of other makers read.

Sources: C2SP tlog-proof v1 (a leaf), and the request of tlog-witness (growth).
"""

from collections.abc import Sequence

from evenload.errors import ConfigError, FormatError, quoted
from evenload.merkle.log.checkpoint import Checkpoint, number_in, read_checkpoint
from evenload.merkle.log.keys import base64_of, from_base64
from evenload.merkle.log.note import MOST_NOTE_BYTES, Keys
from evenload.merkle.proof import ConsistencyProof, InclusionProof
from evenload.merkle.scheme import DIGEST_BYTES, MAX_DEPTH, Scheme

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
    if not isinstance(text, str | bytes):
        raise FormatError(f"a {type(text).__name__} is no proof", hint="give its text")
    if len(text) > 2 * MOST_NOTE_BYTES:
        raise FormatError(f"a proof of more than {2 * MOST_NOTE_BYTES:,} bytes is not read")
    try:
        content = text.decode() if isinstance(text, bytes) else text
    except UnicodeDecodeError:
        raise FormatError("the proof is not UTF-8") from None
    proof, cut, note = content.partition("\n\n")
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
