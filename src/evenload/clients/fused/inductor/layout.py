"""Where buffers lie in one piece of memory: those that are not in use at the same time may share a place."""

from collections.abc import Mapping, Sequence

ALIGNMENT = 64  # bytes, of a line of the cache


def laid_out(sizes: Mapping[int, int], uses: Sequence[Sequence[int]]) -> tuple[dict[int, int], int]:
    """Offsets of the buffers that are used, and the bytes that all take; a multiple of ALIGNMENT each.

    sizes  bytes of each buffer
    uses   the buffers that each call works on, in the order of calls; others than in ``sizes`` are left out
    A buffer is in use from the first call that has it to the last. Each goes to the first gap that it fits.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for at, buffers in enumerate(uses):
        for buffer in buffers:
            if buffer in sizes:
                first.setdefault(buffer, at)
                last[buffer] = at
    offsets: dict[int, int] = {}
    ends: dict[int, int] = {}
    for buffer in sorted(first, key=lambda b: first[b]):
        size = -(-sizes[buffer] // ALIGNMENT) * ALIGNMENT
        beside = sorted((offsets[b], ends[b]) for b in offsets if last[b] >= first[buffer])
        place = 0
        for begin, end in beside:
            if place + size <= begin:
                break
            place = max(place, end)
        offsets[buffer], ends[buffer] = place, place + size
    return offsets, max(ends.values(), default=0)
