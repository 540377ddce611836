"""Items and results pickled one by one, to find those that cannot be.

Normally a chunk is pickled as a whole, which is faster and fails as a whole. A chunk that failed is sent
again this way: an object that cannot be pickled or unpickled is replaced by a Failure, whatever it raises:
its own code may raise SystemExit.
"""

import pickle
from collections.abc import Sequence
from typing import Any

from evenload.executor.task.failure import Failure
from evenload.executor.transport.pickling import pack

Packed = tuple[bytes, list] | Failure


def pack_apart(objects: Sequence[Any], kind: str) -> list[Packed]:
    """Pickle each object; ``kind`` is the kind of the failures."""
    packed: list[Packed] = []
    for obj in objects:
        try:
            body, buffers = pack(obj, by_file=kind == "input")
            packed.append((body, [bytes(buffer) for buffer in buffers]))
        except BaseException as error:
            packed.append(Failure.of(error, kind))
    return packed


def unpack_apart(packed: Sequence[Packed], kind: str) -> list[Any]:
    """Unpickle each object; failures stay what they are."""
    objects: list[Any] = []
    for one in packed:
        try:
            objects.append(one if isinstance(one, Failure) else pickle.loads(one[0], buffers=one[1]))
        except BaseException as error:
            objects.append(Failure.of(error, kind))
    return objects
