"""Signed notes: a text, an empty line, and signatures of the text. Source: C2SP signed-note v1."""

from collections.abc import Sequence
from dataclasses import dataclass

from evenload._arguments import whole
from evenload.errors import ConfigError, FormatError, quoted
from evenload.merkle.log.keys import SigningKey, VerifierKey, base64_of, from_base64, is_key_name

MOST_NOTE_BYTES = 1_000_000
MOST_SIGNATURES = 128
DASH = "\u2014 "
OneOrMore = str | VerifierKey | Sequence[str | VerifierKey]


@dataclass(frozen=True, slots=True)
class Quorum:
    """A rule of who has to have signed a note: a log, and of its witnesses at least so many.

    log        the log's verifier key, or several, of which one has to have signed
    witnesses  verifier keys of witnesses (C2SP tlog-cosignature); two keys of one name are one witness
    at_least   witnesses that have to have signed; None: all
    It stands wherever keys do. Raises ConfigError for what is no key, and more witnesses than there are.
    """

    log: OneOrMore
    witnesses: Sequence[str | VerifierKey]
    at_least: int | None = None

    def __post_init__(self) -> None:
        n = len({key.name for key in as_keys(self.witnesses)})
        needed = n if self.at_least is None else whole("at_least", self.at_least, least=1)
        if needed > n:
            raise ConfigError(f"at_least={needed} of {n} witnesses", hint=f"give 1 to {n}")
        as_keys(self.log)
        object.__setattr__(self, "at_least", needed)


Keys = OneOrMore | Quorum


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature line of a note: whose it says it is, and its bytes."""

    name: str
    key_id: bytes
    content: bytes


def signed(text: str, *keys: SigningKey) -> str:
    """The note of ``text``, which ends in a newline, signed by each of ``keys``."""
    message = text.encode()
    lines = [f"{DASH}{key.name} {base64_of(key.verifier.key_id + key.sign(message))}\n" for key in keys]
    return f"{text}\n{''.join(lines)}"


def as_keys(keys: OneOrMore) -> list[VerifierKey]:
    """Keys or their texts, one or several. Raises ConfigError for what is none."""
    given = [keys] if isinstance(keys, str | VerifierKey) else keys
    if not isinstance(given, list | tuple) or not given:
        raise ConfigError(
            f"{quoted(keys)} is no key", hint="give the log's verifier key, or a list of several"
        )
    return [key if isinstance(key, VerifierKey) else VerifierKey.parse(key) for key in given]


def signers(note: str | bytes, keys: Keys) -> tuple[str, list[VerifierKey]]:
    """(text, keys of the log that have signed it) of a note that no key which was given has signed wrongly.

    Raises FormatError if that is not so, or too few have signed; ConfigError for keys that are none.
    """
    text, signatures = split_note(note)
    if isinstance(keys, Quorum):
        names = {key.name for key in _signed_by(text, signatures, keys.witnesses)}
        if len(names) < (keys.at_least or 0):
            raise FormatError(
                f"{len(names)} of the witnesses have signed, and {keys.at_least} have to",
                hint="ask the log's owner for a checkpoint that more have cosigned",
            )
        keys = keys.log
    mine = _signed_by(text, signatures, keys)
    if not mine:
        others = ", ".join(quoted(one.name) for one in signatures[:3])
        raise FormatError(
            f"the note is signed by {others}, and by no key that was given",
            hint="see that it is the log's own verifier key",
        )
    return text, mine


def _signed_by(text: str, signatures: Sequence[Signature], keys: OneOrMore) -> list[VerifierKey]:
    """The keys of ``keys`` that have signed. Raises FormatError for a signature of theirs that is wrong."""
    known = {(key.name, key.key_id): key for key in as_keys(keys)}
    mine = [(known[one.name, one.key_id], one) for one in signatures if (one.name, one.key_id) in known]
    for key, one in mine:
        if not key.is_valid(one.content, text.encode()):
            raise FormatError(f"the signature of {quoted(key.name)} is not one of this text")
    return [key for key, _ in mine]


def with_cosignatures(note: str, lines: str | bytes, witnesses: OneOrMore) -> str:
    """The note with the signature lines that witnesses answered, each one in the place of an older one.

    Raises FormatError for a line that is not of one of ``witnesses``, or not of this note's text.
    """
    text, before = split_note(note)
    _, added = split_note(f"{text}\n{_decoded(lines)}")
    if len(_signed_by(text, added, witnesses)) < len(added):
        raise FormatError("a line is signed by no witness that was given", hint="give its verifier key, too")
    found = {(one.name, one.key_id): one for one in (*before, *added)}
    rest = [f"{DASH}{one.name} {base64_of(one.key_id + one.content)}\n" for one in found.values()]
    made = f"{text}\n{''.join(rest)}"
    split_note(made)  # raises for more signatures than a note may have
    return made


def split_note(note: str | bytes) -> tuple[str, list[Signature]]:
    """(text, signatures) of a note; nothing is believed yet. Raises FormatError."""
    content = _decoded(note)
    cut = content.rfind("\n\n")
    if cut < 0 or not content.endswith("\n"):
        raise FormatError("a note is a text, an empty line, and lines of signatures; this is none")
    text, rest = content[: cut + 1], content[cut + 2 :]
    lines = rest.split("\n")[:-1]
    if not 0 < len(lines) <= MOST_SIGNATURES:
        raise FormatError(f"the note has {len(lines)} signatures, not 1 to {MOST_SIGNATURES}")
    return text, [_signature(line) for line in lines]


def text_of(given: object, what: str, most_bytes: int) -> str:
    """What a stranger gave for the text of a note or a proof. Raises FormatError for anything else."""
    if not isinstance(given, str | bytes):
        raise FormatError(f"a {type(given).__name__} is no {what}", hint="give its text")
    if len(given) > most_bytes:
        raise FormatError(f"a {what} of more than {most_bytes:,} bytes is not read")
    try:
        content = given.decode() if isinstance(given, bytes) else given
        content.encode()
    except UnicodeError:
        raise FormatError(f"the {what} is not UTF-8") from None
    return content


def _decoded(note: object) -> str:
    content = text_of(note, "note", MOST_NOTE_BYTES)
    if any(letter < " " and letter != "\n" for letter in content):
        raise FormatError("the note has control characters")
    return content


def _signature(line: str) -> Signature:
    parts = line.removeprefix(DASH).split(" ")
    content = from_base64(parts[1]) if len(parts) == 2 and line.startswith(DASH) else None
    if content is None or len(content) < 5 or not is_key_name(parts[0]):
        raise FormatError(f"{quoted(line)} is no signature", hint="a line is: — name base64")
    return Signature(parts[0], content[:4], content[4:])
