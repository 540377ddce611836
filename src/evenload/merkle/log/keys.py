"""Keys of signed notes: Ed25519, with the name and id that signatures carry.

Sources: C2SP signed-note v1, and tlog-cosignature v1 for those of witnesses.
"""

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evenload._optional import require
from evenload._private_files import read_own, write_own
from evenload.errors import ConfigError, printable, quoted

ED25519 = b"\x01"
COSIGNATURE = b"\x04"  # Ed25519 of the text behind the time at which a witness saw it
TIME_BYTES = 8
KEY_BYTES = 32
SIGNATURE_BYTES = 64
MOST_KEY_TEXT = 4096
PRIVATE = "PRIVATE+KEY+"


@dataclass(frozen=True, slots=True)
class VerifierKey:
    """A public key: what whoever checks a log's checkpoints has to know.

    name    of the log or the witness, as it stands before each signature: "example.com/log"
    public  32 bytes
    kind    1 byte: of a log that signs the text, or of a witness, whose cosignatures have a time
    Raises ConfigError for what is no name or key.
    """

    name: str
    public: bytes
    kind: bytes = ED25519

    def __post_init__(self) -> None:
        if not is_key_name(self.name):
            raise ConfigError(
                f"{quoted(self.name)} is no name of a key",
                hint="write it like a URL without https://, with no space or + in it: example.com/log",
            )
        if not isinstance(self.public, bytes) or len(self.public) != KEY_BYTES:
            raise ConfigError(f"an Ed25519 public key is {KEY_BYTES} bytes, not {quoted(self.public)}")
        if self.kind not in (ED25519, COSIGNATURE):
            raise ConfigError(f"a key of the kind {quoted(self.kind)}", hint="use Ed25519: of kind 1 or 4")

    @classmethod
    def parse(cls, text: str) -> "VerifierKey":
        """The key of a text such as ``example.com/log+530d903a+AekyeR...``. Raises ConfigError."""
        name, key_id, content, kind = _parts(text, "a verifier key")
        key = cls(name, content, kind)
        if key_id != key.key_id:
            raise ConfigError(
                f"the key's id is {quoted(key_id.hex())}, and that of its content {key.key_id.hex()}",
                hint="copy the whole key, as the log's owner gave it",
            )
        return key

    @property
    def key_id(self) -> bytes:
        """The 4 bytes that mark this key's signatures."""
        return hashlib.sha256(self.name.encode() + b"\n" + self.kind + self.public).digest()[:4]

    def __str__(self) -> str:
        return f"{self.name}+{self.key_id.hex()}+{base64_of(self.kind + self.public)}"

    def is_valid(self, signature: bytes, message: bytes) -> bool:
        """Whether this key made ``signature`` of ``message``. Raises MissingExtra without cryptography."""
        ed25519 = _ed25519()
        if self.kind == COSIGNATURE:
            seconds, signature = int.from_bytes(signature[:TIME_BYTES], "big"), signature[TIME_BYTES:]
            message = b"cosignature/v1\ntime %d\n" % seconds + message
        if len(signature) != SIGNATURE_BYTES:
            return False
        try:
            ed25519.Ed25519PublicKey.from_public_bytes(self.public).verify(signature, message)
        except (require("cryptography.exceptions", extra="zk").InvalidSignature, ValueError):
            return False
        return True


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A secret key that signs a log's checkpoints; its text form is that of Go's ``sumdb/note``.

    name  of the log
    seed  32 bytes that nobody else may know
    Raises ConfigError, and MissingExtra without cryptography.
    """

    name: str
    seed: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.seed, bytes) or len(self.seed) != KEY_BYTES:
            raise ConfigError(f"the seed of a signing key is not {KEY_BYTES} bytes")
        _ = self.verifier

    @classmethod
    def make(cls, name: str) -> "SigningKey":
        """A new key from the system's randomness."""
        return cls(name, _ed25519().Ed25519PrivateKey.generate().private_bytes_raw())

    @classmethod
    def parse(cls, text: str) -> "SigningKey":
        """The key that ``str(key.secret)`` of this or another program wrote. Raises ConfigError."""
        if not isinstance(text, str) or not text.startswith(PRIVATE):
            raise ConfigError("this is no signing key", hint=f"it begins with {PRIVATE}")
        name, key_id, seed, _ = _parts(text.removeprefix(PRIVATE), "a signing key", is_secret=True)
        key = cls(name, seed)
        if key_id != key.verifier.key_id:
            raise ConfigError("the signing key's id is not that of its content", hint="copy the whole key")
        return key

    @classmethod
    def read(cls, path: str | Path) -> "SigningKey":
        """The key in a file that nobody else may write. Raises ConfigError."""
        try:
            text = read_own(Path(path), "a signing key", MOST_KEY_TEXT).decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is no text"
            raise ConfigError(
                f"no signing key can be read from {printable(str(path))}: {why}",
                hint="make one: evenload merkle log keygen",
            ) from error
        return cls.parse(text.strip())

    def write(self, path: str | Path) -> None:
        """Write a file that only this user may read. Raises ConfigError if there is one."""
        path = Path(path)
        try:
            if path.exists() or path.is_symlink():
                raise ConfigError(
                    f"{printable(str(path))} is there already",
                    hint="name a new file: a key is never replaced",
                )
            write_own(path, f"{self.secret_text}\n".encode())
        except OSError as error:
            raise ConfigError(f"{printable(str(path))} cannot be written: {error.strerror}") from error

    @property
    def secret_text(self) -> str:
        """The key as text, which nobody else may see."""
        return f"{PRIVATE}{self.name}+{self.verifier.key_id.hex()}+{base64_of(ED25519 + self.seed)}"

    @property
    def verifier(self) -> VerifierKey:
        """The public key that goes with it."""
        return VerifierKey(self.name, self._private().public_key().public_bytes_raw())

    def sign(self, message: bytes) -> bytes:
        """The 64 bytes of the signature."""
        return self._private().sign(message)

    def _private(self) -> Any:
        return _ed25519().Ed25519PrivateKey.from_private_bytes(self.seed)


def is_key_name(name: object) -> bool:
    """Whether ``name`` may stand in a signature: no space of Unicode's, no +, no control character."""
    return (
        isinstance(name, str)
        and 0 < len(name) <= 255
        and name.isprintable()
        and not re.search(r"[\s+]", name)
    )


def base64_of(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def from_base64(text: str) -> bytes | None:
    """The bytes; None for what is not exactly the standard encoding of any."""
    try:
        content = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return None
    return content if base64_of(content) == text else None


def _parts(text: object, what: str, *, is_secret: bool = False) -> tuple[str, bytes, bytes, bytes]:
    """(name, id, 32 bytes, kind) of the text of a key."""
    if not is_secret and isinstance(text, str) and text.lstrip().startswith(PRIVATE):
        raise ConfigError(
            f"this is a signing key, which nobody else may see, and not {what}",
            hint="give the line that evenload merkle log keygen printed: str(key.verifier)",
        )
    parts = text.split("+", 2) if isinstance(text, str) and len(text) <= MOST_KEY_TEXT else []
    content = from_base64(parts[2]) if len(parts) == 3 else None
    if content is None or not re.fullmatch("[0-9a-f]{8}", parts[1]):
        shown = "this" if is_secret else quoted(text)
        raise ConfigError(
            f"{shown} is not {what}", hint="write name+id+key, as evenload merkle log keygen does"
        )
    kinds = (ED25519,) if is_secret else (ED25519, COSIGNATURE)
    if content[:1] not in kinds or len(content) != 1 + KEY_BYTES:
        raise ConfigError(
            f"{what} of this kind is not known",
            hint="use an Ed25519 key: its kind is 1, or 4 of a witness that cosigns",
        )
    return parts[0], bytes.fromhex(parts[1]), content[1:], content[:1]


def _ed25519() -> Any:
    module = "cryptography.hazmat.primitives.asymmetric.ed25519"
    return require(module, extra="zk", why="signing and checking checkpoints")
