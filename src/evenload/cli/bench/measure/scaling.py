"""One piece of work on one device, and on more: speed-up, efficiency, bound, and what Amdahl predicts."""

import hashlib
import time

from evenload.balance.metrics import utilisation_deviation
from evenload.cli.bench.measure.trial_report import BenchOptions, TrialReport, compare_with_first, device_row
from evenload.executor import Executor


class HashTask:
    """A task that computes and sends nothing: so many SHA-256 of 64 KiB; on a GPU, products of matrices."""

    def __init__(self, device: object) -> None:
        self.matrix = None
        torch_name = getattr(device, "torch", "cpu")
        if torch_name != "cpu":
            import torch

            self.matrix = torch.ones(2048, 2048, device=torch_name)

    def __call__(self, n: int) -> int:
        if self.matrix is not None:
            import torch

            for _ in range(n):
                torch.mm(self.matrix, self.matrix)
            torch.cuda.synchronize()
            return n
        block = bytes(1 << 16)
        for _ in range(n):
            hashlib.sha256(block).digest()
        return n


def scaling(options: BenchOptions) -> TrialReport:
    """Uneven items, dealt by measured speed, on every selection of devices."""
    n_items = 60 if options.is_quick else 300
    items = [2 + (37 * i) % 17 for i in range(n_items)]
    scale = _scale(0.8 if options.is_quick else 6.0, sum(items))
    items = [scale * item for item in items]
    rows, start_s = [], 0.0
    for spec in options.specs:
        with Executor(spec, echo=False) as executor:
            n = len(executor.devices)
            list(executor.map(HashTask, [1] * n, repeatable=False))
            began = time.perf_counter()
            results = executor.map(HashTask, items)
            list(results)
            wall_s = time.perf_counter() - began
        summary = results.summary
        if summary is None:
            raise AssertionError("a finished run has a summary")
        busy = [share.busy_s for share in summary.devices.values()]
        start_s = start_s or summary.startup_s
        spread, work_s = utilisation_deviation(busy, max(wall_s, *busy)), wall_s - summary.startup_s
        rate = len(items) / wall_s
        rows.append(device_row(spec, n, work_s, summary.ratio_to_bound, spread, items_per_s=rate))
    note = (
        f"{n_items} items of 1 to 9 times the same length; bound: no plan could be faster at the speeds "
        "measured in the same run. A machine that does something else meanwhile is slower on all devices "
        "than on one: the bound sees that, the speed-up suffers from it."
    )
    return TrialReport("scaling", "", compare_with_first(rows, start_s), note)


def _scale(seconds: float, n: int) -> int:
    """How often an item of one does its work, so that ``n`` of them take so many seconds on one core."""
    task = HashTask(None)
    began = time.perf_counter()
    task(50)
    return max(1, round(seconds / n / ((time.perf_counter() - began) / 50)))
