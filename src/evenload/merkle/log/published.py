"""A published log as strangers see it: its checkpoint, entries and tiles, read and recomputed."""

from pathlib import Path

import numpy as np

from evenload._private_files import read_plain
from evenload.errors import FormatError, printable, reason_of
from evenload.merkle.log.checkpoint import Checkpoint, read_checkpoint
from evenload.merkle.log.note import MOST_NOTE_BYTES, Keys
from evenload.merkle.log.tiles import MOST_BUNDLE_BYTES, WIDTH, Tile, bundled, tiles_of
from evenload.merkle.scheme import DIGEST_BYTES
from evenload.merkle.tree import MerkleTree


def check_published(
    folder: str | Path, keys: Keys, *, origin: str | None = None, threads: int | None = None
) -> Checkpoint:
    """Check all of a folder in the format of C2SP tlog-tiles, whoever wrote it; returns its checkpoint.

    keys, origin  as for ``read_checkpoint``
    Reads every entry, hashes it, and compares every node of the tiles and the root. Raises FormatError at the
    first thing that is missing or wrong, naming its file; ConfigError for keys that are none.
    """
    folder = Path(folder)
    note = _read(folder, "checkpoint", MOST_NOTE_BYTES)
    try:
        found = read_checkpoint(note, keys, origin=origin)
    except FormatError as error:
        raise FormatError(f"checkpoint: {error.message}", hint=error.hint) from error
    tree = MerkleTree(threads=threads)
    for tile in tiles_of(found.size):
        if tile.level == 0:
            _append_entries(tree, folder, tile)
        start = tile.index * WIDTH
        expected = tree.level(8 * tile.level)[start : start + tile.width]
        nodes, name = _nodes(folder, tile)
        wrong = (nodes != expected).any(axis=1)
        if wrong.any():
            raise FormatError(f"{name}: node {int(wrong.argmax())} is not that of the entries")
    if tree.root != found.root:
        raise FormatError("the entries do not have the root that the checkpoint has signed")
    return found


def _append_entries(tree: MerkleTree, folder: Path, tile: Tile) -> None:
    content, width, name = _whole_or_partial(folder, tile, MOST_BUNDLE_BYTES, is_of_entries=True)
    try:
        entries = bundled(content, width)[: tile.width]
    except FormatError as error:
        raise FormatError(f"{name}: {error.message}") from error
    tree.append_records(entries)


def _nodes(folder: Path, tile: Tile) -> tuple[np.ndarray, str]:
    """(nodes [width, 32], name of the file)."""
    content, width, name = _whole_or_partial(folder, tile, WIDTH * DIGEST_BYTES, is_of_entries=False)
    if len(content) != width * DIGEST_BYTES:
        raise FormatError(f"{name} has {len(content):,} bytes, not {width * DIGEST_BYTES:,}")
    return np.frombuffer(content, np.uint8).reshape(-1, DIGEST_BYTES)[: tile.width], name


def _whole_or_partial(folder: Path, tile: Tile, most: int, *, is_of_entries: bool) -> tuple[bytes, int, str]:
    """(content, its width, name) of a tile. A log that has grown may have the whole one alone."""

    def name_of(one: Tile) -> str:
        return one.entries_path if is_of_entries else one.path

    found = tile if (folder / name_of(tile)).exists() else tile._replace(width=WIDTH)
    return _read(folder, name_of(found), most), found.width, name_of(found)


def _read(folder: Path, name: str, most: int) -> bytes:
    try:
        return read_plain(folder / name, most)
    except OSError as error:
        why = reason_of(error)
        raise FormatError(f"{printable(str(folder / name))} cannot be read: {printable(why)}") from error
