"""Work in submissions of about 50 ms: Windows resets a GPU that takes 2 s, and a screen must not wait.

How long an item takes is measured as work goes on. Before anything is known, little is submitted at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evenload.errors import ConfigError
from evenload.gpu.wgsl.context import Context
from evenload.gpu.wgsl.kernel import WORKGROUP, Buffer, KernelSource

BUDGET_S = 0.05
FIRST_ITEMS = 64
LEAST_ITEM_S = 1e-11
MAX_GROUPS = 65_535


@dataclass(slots=True)
class _Rate:
    """Seconds per item of one kernel."""

    item_s: float
    n_items: int  # that it was measured on


class KernelPace:
    """The measured seconds per item of each kernel.

    Keep it with the context, to measure each kernel only once.
    """

    def __init__(self) -> None:
        self._rates: dict[KernelSource, _Rate] = {}
        self.launch_s = 0.0  # what a submission takes that does nothing
        self.longest_s = 0.0  # the longest submission of work that was known

    def is_known(self, kernel: KernelSource) -> bool:
        return kernel in self._rates

    def seconds(self, kernel: KernelSource, n: int) -> float:
        return self._rates[kernel].item_s * n

    def most_items(self, kernel: KernelSource, seconds: float) -> int:
        """Items that take no longer than ``seconds``: whole workgroups, at least one."""
        n = int(seconds / self._rates[kernel].item_s) // WORKGROUP * WORKGROUP
        return min(max(WORKGROUP, n), MAX_GROUPS * WORKGROUP)

    def learn(self, items: Mapping[KernelSource, int], took_s: float) -> None:
        """What a submission took. Bad news counts at once, good news if it rests on as many items."""
        took_s = max(took_s - self.launch_s, 0.0)
        if len(items) == 1:
            ((kernel, n),) = items.items()
            item_s = max(took_s / n, LEAST_ITEM_S)
            rate = self._rates.get(kernel)
            if rate is None or n >= rate.n_items or item_s > rate.item_s:
                self._rates[kernel] = _Rate(item_s, n)
            return
        expected_s = sum(self.seconds(kernel, n) for kernel, n in items.items())
        scale = min(max(took_s / expected_s, 0.25), 4.0)
        for kernel in items:
            rate = self._rates[kernel]
            rate.item_s = max(rate.item_s * scale, LEAST_ITEM_S)


class Queue:
    """A queue of dispatches that are submitted in portions; ``finish`` waits for all.

    Dispatches run one after the other: each sees what those before it wrote.
    """

    def __init__(self, context: Context, pace: KernelPace | None = None):
        self._context, self._pace = context, pace or KernelPace()
        self._submission = context.submission()
        self._items: dict[KernelSource, int] = {}
        self._expected_s = 0.0

    def dispatch(
        self, kernel: KernelSource, buffers: Sequence[Buffer], n: int, first: int = 0, **params: int
    ) -> None:
        """Run ``kernel`` for items ``first`` .. ``n - 1``, in as many parts as it takes."""
        if set(params) != set(kernel.params) or len(buffers) != len(kernel.storages):
            raise ConfigError(
                f"{kernel.name} takes {len(kernel.storages)} buffers and the parameters {list(kernel.params)}"
            )
        values = [params[name] for name in kernel.params]
        if first < n and not self._pace.is_known(kernel):
            first += self._meet(kernel, buffers, n, first, values)
        while first < n:
            room_s = BUDGET_S - self._expected_s
            count = min(n - first, self._pace.most_items(kernel, max(room_s, 0.0)))
            is_over = self._submission.is_full or self._pace.seconds(kernel, count) > room_s
            if self._submission.slots and is_over:
                self.finish()
                continue
            self._record(kernel, buffers, [first + count, first, *values], count)
            first += count

    def finish(self) -> None:
        """Submit what is recorded and wait for it. Raises what the driver says is wrong."""
        if not self._submission.slots:
            return
        items, self._items, self._expected_s = self._items, {}, 0.0
        took_s = self._submission.submit()
        self._pace.longest_s = max(self._pace.longest_s, took_s)
        self._pace.learn(items, took_s)

    def _meet(
        self, kernel: KernelSource, buffers: Sequence[Buffer], n: int, first: int, values: list[int]
    ) -> int:
        """Run the first few items of a kernel by themselves, to measure it. Returns how many."""
        self.finish()
        # Without any item: first the driver compiles the kernel, then it shows what a launch takes.
        self._append(kernel, buffers, [0, 0, *values], 1)
        self._submission.submit()
        self._append(kernel, buffers, [0, 0, *values], 1)
        launch_s = self._submission.submit()
        self._pace.launch_s = min(launch_s, self._pace.launch_s or launch_s)
        count = min(FIRST_ITEMS, n - first)
        self._append(kernel, buffers, [first + count, first, *values], count)
        self._pace.learn({kernel: count}, self._submission.submit())
        return count

    def _record(self, kernel: KernelSource, buffers: Sequence[Buffer], slot: list[int], count: int) -> None:
        self._append(kernel, buffers, slot, count)
        self._items[kernel] = self._items.get(kernel, 0) + count
        self._expected_s += self._pace.seconds(kernel, count)

    def _append(self, kernel: KernelSource, buffers: Sequence[Buffer], slot: list[int], count: int) -> None:
        self._submission.record(self._context.compiled(kernel), buffers, slot, count)
