"""Multi-scalar multiplication on a GPU: digits and their order are found here, points are added there.

multiply(bases, scalars)  ->  signed digits, sorted by bucket  ->  runs of at most 64 points, level by level
                          ->  segments of buckets  ->  back to the CPU: one fold
"""

import math
from dataclasses import dataclass

import numpy as np

from evenload.gpu.field import FQ
from evenload.gpu.llvm import programs, rows
from evenload.gpu.wgsl.context import Resident
from evenload.gpu.wgsl.field import WgslField
from evenload.gpu.wgsl.kernel import Buffer
from evenload.gpu.wgsl.sums import MAX_RUN, MAX_SEGMENT, collect_kernel, convert_kernel, segment_kernel
from evenload.zk.cpu import msm, points
from evenload.zk.wgsl_device import WgslDevice

MAX_ENTRIES = 1 << 23
"""Digits that are sorted and sent at once."""


class WgslBases:
    """Points of one section of a key, checked, without infinity, on a device.

    given  as for ``msm.Bases.load`` at level word64, which has checked them
    """

    def __init__(self, device: WgslDevice, given: msm.Bases):
        self.device, self.degree, self.n_given = device, given.degree, given.n_given
        n = len(given.keep)
        parts = device.context.spans(n, 64 * given.degree) if n else ()
        self.parts = [BoundPoints(device, given, part) for part in parts]

    def multiply(self, scalars: np.ndarray, width: int | None = None) -> np.ndarray:
        """sum of scalars[i] * point i: an affine row [8 * degree] uint64, R = 2^256, zeros for infinity.

        scalars  [n_given, 4] uint64, plain, below r
        """
        found = [part.multiply(scalars, width) for part in self.parts]
        if len(found) == 1:
            return found[0]
        if not found:
            return rows.zeros(1, 64 * self.degree)[0]
        return points.combine(self.degree, np.stack(found), [1] * len(found))


class BoundPoints:
    """The points of a section that fit one binding."""

    def __init__(self, device: WgslDevice, given: msm.Bases, part: range):
        self._device, self._degree, self._n_given = device, given.degree, given.n_given
        self._keep = np.ascontiguousarray(given.keep[part.start : part.stop])
        own = np.ascontiguousarray(given.points[part.start : part.stop])
        is_same = WgslField(FQ, device.variant).radix_bits == 256
        self.points = Resident(device.context, own, None if is_same else self._convert)

    def _convert(self, buffer: Buffer) -> None:
        queue = self._device.queue()
        queue.dispatch(convert_kernel(self._device.variant), [buffer], len(self._keep) * 2 * self._degree)
        queue.finish()

    def multiply(self, scalars: np.ndarray, width: int | None = None) -> np.ndarray:
        out = rows.zeros(1, 64 * self._degree)
        found = msm.signed_digits(self._keep, self._n_given, scalars, width)
        if found is None:
            return out[0]
        digit, width = found
        n_windows, n_buckets = len(digit), 1 << width - 1
        length = min(MAX_SEGMENT, n_buckets)
        lanes = n_buckets // length
        together = self._windows_at_once(len(self._keep), n_buckets)
        segments = np.concatenate(
            [
                self._sum_windows(digit[w : w + together], n_buckets, length)
                for w in range(0, n_windows, together)
            ]
        )
        aligned = rows.aligned(segments)
        fold = getattr(programs.scalar(), f"g{self._degree}_fold")
        fold(rows.address(aligned), n_windows, lanes, int(math.log2(length)), width, rows.address(out))
        return out[0]

    def _windows_at_once(self, n: int, n_buckets: int) -> int:
        """So many windows that index and sums fit a binding each."""
        most = self._device.context.max_binding_bytes
        slots = n_buckets + n // MAX_RUN * 2 + 1
        return max(1, min(MAX_ENTRIES // n, most // (4 * n), most // (96 * self._degree * slots)))

    def _sum_windows(self, digit: np.ndarray, n_buckets: int, length: int) -> np.ndarray:
        """[segments of all windows, 24 * degree] uint64."""
        start, index = msm.sort_digits(digit, n_buckets)
        runs = plan_runs(start)
        return self._device.run(
            lambda: self._on_device(index, runs, len(digit) * n_buckets // length, length)
        )

    def _on_device(self, index: np.ndarray, runs: "Runs", n_segments: int, length: int) -> np.ndarray:
        context, degree, variant = self._device.context, self._degree, self._device.variant
        own, entries = self.points.buffer(), context.upload(index)
        sums, out = context.buffer(96 * degree * runs.n_slots), context.buffer(192 * degree * n_segments)
        queue = self._device.queue()
        for level, table in enumerate(runs.levels):
            bound = [own, entries, context.upload(table), sums]
            queue.dispatch(
                collect_kernel(degree, variant), bound, len(table), from_sums=int(level > 0), products=3
            )
        queue.dispatch(segment_kernel(degree, variant), [sums, out], n_segments, length=length, products=3)
        queue.finish()
        return context.download(out).view(np.uint64).reshape(n_segments, 24 * degree)


@dataclass(frozen=True, slots=True)
class Runs:
    """A plan for adding up buckets: ``levels`` of [n, 3] uint32 rows (first, count, slot).

    Each level reads what the one before it wrote (the first: the sorted index). A bucket's sum ends in the
    slot of its number.
    """

    levels: tuple[np.ndarray, ...]
    n_slots: int


def plan_runs(start: np.ndarray) -> Runs:
    """Runs of at most ``MAX_RUN`` for buckets that hold the entries start[b] .. start[b + 1] - 1."""
    first, count = start[:-1], np.diff(start)
    target = np.flatnonzero(count)
    first, count = first[target], count[target]
    next_slot, levels = len(start) - 1, []
    while len(target):
        n_runs = -(-count // MAX_RUN)
        is_split = n_runs > 1
        offset = next_slot + np.cumsum(np.where(is_split, n_runs, 0)) - n_runs
        owner = np.repeat(np.arange(len(target)), n_runs)
        place = np.arange(len(owner)) - np.repeat(np.cumsum(n_runs) - n_runs, n_runs)
        size = np.minimum(MAX_RUN, count[owner] - place * MAX_RUN)
        slot = np.where(is_split[owner], offset[owner] + place, target[owner])
        table = np.stack([first[owner] + place * MAX_RUN, size, slot], axis=1).astype(np.uint32)
        # Items of one length side by side: those that run in step do not wait for each other.
        levels.append(table[np.argsort(-size.astype(np.int16), kind="stable")])
        next_slot += int(n_runs[is_split].sum())
        first, count, target = offset[is_split], n_runs[is_split], target[is_split]
    return Runs(tuple(levels), next_slot)
