"""The log: leaves that are only added, checkpoints of them, and proofs, in a folder that can be served."""

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evenload._arguments import whole
from evenload._closing import Closing
from evenload._private_files import read_plain, sync_folder, whole_file
from evenload.errors import ConfigError, EvenloadError, FormatError, printable, quoted, reason_of
from evenload.merkle.log.checkpoint import Checkpoint, growth_text, inclusion_text
from evenload.merkle.log.keys import SigningKey
from evenload.merkle.log.leaf_file import LeafFile
from evenload.merkle.log.note import MOST_NOTE_BYTES, OneOrMore, signed, split_note, with_cosignatures
from evenload.merkle.log.tiles import MOST_ENTRY_BYTES, WIDTH, Tile, bundle, tiles_of
from evenload.merkle.proof import ConsistencyProof, InclusionProof
from evenload.merkle.tree import MerkleTree

__all__ = ["Log"]


class Log(Closing):
    """A transparency log in a folder: leaves can be added, and nobody can change or remove one unnoticed.

    folder       of one log; a new one is begun there if it is empty or missing, and ``origin`` is given
    origin       the log's name, like a URL without https://: "example.com/log"
    is_writable  False to read a log while another process appends to it
    threads      that hash; None for as many as this process's device has

    Holds 75 bytes of memory per leaf. For one thread at a time; one process at a time can append. Opening
    reads and hashes all leaves. Raises ConfigError if it is refused, FormatError if leaves that were
    acknowledged or signed are damaged or lost.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        *,
        origin: str | None = None,
        is_writable: bool = True,
        threads: int | None = None,
    ):
        self.folder = Path(folder)
        path = self.folder / "leaves"
        try:
            if is_writable and origin is not None:
                _begin(self.folder, path, origin)
            self._leaves = LeafFile.open(path, is_writable=is_writable)
        except OSError as error:
            raise ConfigError(
                f"there is no log that can be opened in {printable(str(folder))}: {error.strerror}",
                hint="give an origin to begin one in an empty folder (origin=, --origin)",
            ) from error
        self._is_writable = is_writable
        try:
            self.origin = self._leaves.origin
            if origin not in (None, self.origin):
                raise ConfigError(
                    f"the log's origin is {quoted(self.origin)}, not {quoted(origin)}",
                    hint="name another folder for another log",
                )
            self._tree = MerkleTree(threads=threads)
            # Before the leaves: what another process signs meanwhile, it has appended before.
            self._note = self._last_note()
            for leaves in self._leaves.load():
                self._grow(leaves)
            self._signed = self._last_checkpoint()
        except BaseException:
            self._leaves.close()
            raise

    def __len__(self) -> int:
        return len(self._tree)

    def __getitem__(self, index: int) -> bytes:
        """Leaf ``index``, as it was appended."""
        if whole("index", index, most=None) >= len(self):
            raise IndexError(f"there is no leaf {index} among {len(self)}")
        self._require_open()
        return self._leaves[index]

    @property
    def root(self) -> bytes:
        """The root of all leaves, signed or not: 32 bytes."""
        return self._tree.root

    @property
    def n_cut(self) -> int:
        """How many bytes behind the leaves belong to none: a crash left them, or somebody writes them now."""
        return self._leaves.n_cut

    @property
    def signed_size(self) -> int | None:
        """How many leaves the last checkpoint has; None if there is none."""
        return None if self._signed is None else self._signed.size

    def append(self, leaves: Iterable[bytes]) -> range:
        """Add leaves of at most 65,535 bytes each; returns their indices when all are on disk.

        Many at once are much faster than one after the other. Raises ConfigError for what are no such
        leaves: then none is added; EvenloadError if the disk is full or fails: then some may be.
        """
        self._require_writable()
        found = _checked(leaves)
        first = len(self)
        if found:
            self._leaves.append(found)
            self._grow(found)
        return range(first, len(self))

    def checkpoint(self, key: SigningKey, *more: SigningKey) -> str:
        """Sign what the log holds now; returns the note, once its tiles and it are published in the folder.

        key, more  whose names are the log's origin, or anybody's who signs as well
        Raises ConfigError if ``key`` is of another log, EvenloadError if the disk is full or fails: then the
        checkpoint before is still there.
        """
        self._require_writable()
        if not isinstance(key, SigningKey) or key.name != self.origin:
            name = quoted(getattr(key, "name", key))
            raise ConfigError(
                f"the key is of {name}, the log of {quoted(self.origin)}",
                hint="sign with a key of the log's name: SigningKey.make(log.origin)",
            )
        now, since = Checkpoint(self.origin, len(self), self.root), self.signed_size or 0
        note = signed(now.text, key, *more)
        try:
            folders = {self._publish(tile) for tile in tiles_of(now.size, since)}
            for folder in sorted({one for some in folders for one in some}):
                sync_folder(folder)
            self._write_note(note)
        except OSError as error:
            raise EvenloadError(
                f"the checkpoint cannot be written to {printable(str(self.folder))}: {error.strerror}",
                hint="make room on its disk and sign again",
            ) from error
        self._signed = now
        self._remove_partial(since, now.size)
        return note

    def cosigned(self, lines: str | bytes, witnesses: OneOrMore) -> str:
        """Publish the last checkpoint with what witnesses answered to it; returns the note.

        lines      of signatures, as the answers of C2SP's tlog-witness are
        witnesses  verifier keys of those that may have signed
        Raises FormatError for a line that is not of one of them, or of another checkpoint; ConfigError if
        nothing was signed yet; OSError.
        """
        self._require_writable()
        self._require_signed()
        note = with_cosignatures(self._note, lines, witnesses)
        self._write_note(note)
        return note

    def prove_inclusion(self, index: int, size: int | None = None) -> InclusionProof:
        """Prove that leaf ``index`` is in the log.

        size  that the log had; default: that of the last checkpoint, or all leaves without one
        Raises ConfigError if there was no such leaf.
        """
        return self._tree.prove(whole("index", index, most=None), self._size(size))

    def prove_consistency(self, old_size: int, new_size: int | None = None) -> ConsistencyProof:
        """Prove that the log of ``new_size`` leaves (default: those signed) begins with ``old_size``.

        Raises ConfigError unless 1 <= old_size <= new_size.
        """
        return self._tree.prove_consistency(whole("old_size", old_size, most=None), self._size(new_size))

    def inclusion_text(self, index: int) -> str:
        """The proof of leaf ``index`` with the last checkpoint, as C2SP's ``tlog-proof``.

        Raises ConfigError if there is no checkpoint, or no such leaf under it.
        """
        return inclusion_text(self.prove_inclusion(index, self._require_signed().size), self._note)

    def growth_text(self, old_size: int) -> str:
        """The proof that the last checkpoint's log begins with that of ``old_size``, as witnesses take it.

        Raises ConfigError if there is no checkpoint, or a smaller one.
        """
        size = self._require_signed().size
        path = self.prove_consistency(old_size, size).path if old_size else ()
        return growth_text(whole("old_size", old_size, most=None), path, self._note)

    def close(self) -> None:
        """Close the file of leaves. What was acknowledged stays."""
        self._leaves.close()

    # --- inside -----------------------------------------------------------------------------------

    def _write_note(self, note: str) -> None:
        with whole_file(self.folder / "checkpoint", 0o644) as file:
            file.write(note.encode())
        sync_folder(self.folder)
        self._note = note

    def _grow(self, leaves: Sequence[bytes]) -> None:
        if len({len(leaf) for leaf in leaves}) == 1 and leaves[0]:
            self._tree.append(np.frombuffer(b"".join(leaves), np.uint8).reshape(len(leaves), -1))
        else:
            self._tree.append_records(leaves)

    def _size(self, size: int | None) -> int:
        return (self.signed_size or len(self)) if size is None else whole("size", size, most=None)

    def _require_open(self) -> None:
        if not self._leaves.is_open:  # another process may append and sign by now
            raise ConfigError("the log is closed", hint="open it again: Log(folder)")

    def _require_writable(self) -> None:
        self._require_open()
        if not self._is_writable:
            raise ConfigError("the log was opened only to read", hint="open it with is_writable=True")

    def _require_signed(self) -> Checkpoint:
        if self._signed is None:
            raise ConfigError("the log has no checkpoint", hint="sign one: log.checkpoint(key)")
        return self._signed

    def _last_note(self) -> str:
        """The note of the checkpoint in the folder, "" if there is none. Raises FormatError."""
        path = self.folder / "checkpoint"
        try:
            return read_plain(path, MOST_NOTE_BYTES).decode()
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError) as error:
            raise FormatError(
                f"{printable(str(path))} cannot be read: {printable(reason_of(error))}"
            ) from error

    def _last_checkpoint(self) -> Checkpoint | None:
        """The checkpoint of that note. Raises FormatError if the leaves are not those that it speaks of."""
        if not self._note:
            return None
        try:
            found = Checkpoint.parse(split_note(self._note)[0])
        except FormatError as error:
            raise FormatError(
                f"{printable(str(self.folder / 'checkpoint'))}: {error.message}",
                hint="restore it from a copy, or from a reader's: it says which leaves have been signed",
            ) from error
        is_mine = found.origin == self.origin and found.size <= len(self)
        if not is_mine or self._tree.root_at(found.size) != found.root:
            raise FormatError(
                f"the checkpoint of {found.size} leaves is not one of the {len(self)} leaves that are here",
                hint="restore the leaves from a copy: nothing else may ever be signed under this name",
            )
        return found

    def _publish(self, tile: Tile) -> tuple[Path, ...]:
        """Write a tile, of level 0 with its leaves; returns the folders that have to be on disk for it."""
        start = tile.index * WIDTH
        nodes = self._tree.level(8 * tile.level)[start : start + tile.width].tobytes()
        written = [_write_below(self.folder, tile.path, nodes)]
        if tile.level == 0:
            leaves = [self._leaves[k] for k in range(start, start + tile.width)]
            written.append(_write_below(self.folder, tile.entries_path, bundle(leaves)))
        return tuple(folder for folders in written for folder in folders)

    def _remove_partial(self, since: int, size: int) -> None:
        """Remove the partial tiles of which the whole one is published now."""
        for tile in tiles_of(since):
            if tile.width < WIDTH and size >> 8 * tile.level >= (tile.index + 1) * WIDTH:
                for path in (tile.path, tile.entries_path) if tile.level == 0 else (tile.path,):
                    shutil.rmtree((self.folder / path).parent, ignore_errors=True)


def _begin(folder: Path, path: Path, origin: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if path.exists():
        return
    if any(not name.startswith(".leaves.") for name in os.listdir(folder)):
        raise ConfigError(f"{printable(str(folder))} has files that are no log", hint="name a new folder")
    LeafFile.create(path, origin)


def _checked(leaves: Any) -> list[bytes]:
    """Leaves as bytes. Raises ConfigError."""
    if isinstance(leaves, bytes | bytearray | memoryview | str) or not isinstance(leaves, Iterable):
        raise ConfigError(f"{type(leaves).__name__} is no set of leaves", hint="give a list of bytes")
    found = []
    for k, leaf in enumerate(leaves):
        is_row = isinstance(leaf, np.ndarray) and leaf.dtype == np.uint8
        if not is_row and not isinstance(leaf, bytes | bytearray | memoryview):
            raise ConfigError(
                f"leaf {k} is a {type(leaf).__name__}", hint="leaves are bytes, or rows of uint8"
            )
        content = bytes(leaf)
        if len(content) > MOST_ENTRY_BYTES:
            raise ConfigError(
                f"leaf {k} has {len(content):,} bytes, and a log's leaf at most {MOST_ENTRY_BYTES:,}",
                hint="log its hash in its place",
            )
        found.append(content)
    return found


def _write_below(folder: Path, name: str, content: bytes) -> list[Path]:
    """Write a file and the folders above it; returns these, up to ``folder``."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path, 0o644) as file:
        file.write(content)
    return [path.parents[k] for k in range(len(Path(name).parts))]
