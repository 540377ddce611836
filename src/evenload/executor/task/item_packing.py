"""Items and results pickled one by one, to find those that cannot be.

The ordinary way pickles a chunk as a whole, which is faster and fails as a whole. A chunk that did is sent
again this way. Where an object cannot be pickled, or not be read, a Failure stands in its place.
"""

import pickle
from collections.abc import Sequence
from typing import Any

from evenload.executor.task.failure import Failure
from evenload.executor.transport.wire import pack

__all__ = ["pack_apart", "unpack_apart"]

Packed = tuple[bytes, list] | Failure


def pack_apart(objects: Sequence[Any], kind: str) -> list[Packed]:
    """Each object as bytes; ``kind`` is that of the failures."""
    packed: list[Packed] = []
    for obj in objects:
        try:
            body, buffers = pack(obj)
            packed.append((body, [bytes(buffer) for buffer in buffers]))
        except Exception as error:
            packed.append(Failure.of(error, kind))
    return packed


def unpack_apart(packed: Sequence[Packed], kind: str) -> list[Any]:
    """The objects and failures that ``packed`` stands for."""
    objects: list[Any] = []
    for one in packed:
        try:
            objects.append(one if isinstance(one, Failure) else pickle.loads(one[0], buffers=one[1]))
        except Exception as error:
            objects.append(Failure.of(error, kind))
    return objects
