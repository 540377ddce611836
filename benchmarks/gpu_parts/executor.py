"""Part ``executor``: a torch module over the GPU and CPUs, out of memory, and a worker killed in a kernel.

A GPU is given to several workers as several devices with one UUID: each worker sees the same GPU.
"""

import functools
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from part import NotHere, Part, main, sharing

FITS = 8  # items of those that run out of memory


@dataclass(frozen=True)
class Size:
    """How much a run is: items, rows of each, width and layers of the module, and how many GPUs' workers."""

    n_items: int
    rows: int
    width: int
    depth: int
    shared: tuple[int, ...]


REAL, TINY = Size(4096, 1024, 4096, 8, (2, 4)), Size(12, 8, 64, 2, ())


class Network:
    """A stack of linear layers on its worker's device; an item is the number of a batch."""

    def __init__(self, size: Size, *, device: Any) -> None:
        import torch
        from torch import nn

        torch.manual_seed(0)
        self._rows = size.rows, size.width
        self._on = {
            "device": device.torch,
            "dtype": torch.float32 if device.torch == "cpu" else torch.bfloat16,
        }
        layers = [
            layer for _ in range(size.depth) for layer in (nn.Linear(size.width, size.width), nn.GELU())
        ]
        self._model = nn.Sequential(*layers).to(**self._on)

    def __call__(self, number: int) -> float:
        import torch

        with torch.inference_mode():
            return float(self._model(torch.full(self._rows, 1.0 + number % 7, **self._on)).float().mean())


@dataclass(frozen=True)
class Place:
    """What a task is told of its device, in this process."""

    torch: str


class Measurement:
    """A part's runs of one module, beside a plain loop over it in this process."""

    def __init__(self, part: Part) -> None:
        self._part, self._size = part, TINY if part.pretend else REAL
        self._task = functools.partial(Network, self._size)
        network = Network(self._size, device=Place(part.device))
        network(0)
        began = time.perf_counter()
        self._expected = [network(number) for number in range(self._size.n_items)]
        self._plain_s = time.perf_counter() - began

    def over(self, name: str, executor: Any) -> None:
        """One map with warm workers, beside the plain loop."""
        list(executor.map(self._task, range(len(executor.devices) * 2)))
        began = time.perf_counter()
        run = executor.map(self._task, range(self._size.n_items))
        found = list(run)
        wall_s = time.perf_counter() - began
        off = max(abs(a - b) for a, b in zip(found, self._expected, strict=True))
        self._part.row(
            f"map over {name}", items_per_s=len(found) / wall_s, plain_items_per_s=len(found) / self._plain_s,
            x_plain=self._plain_s / wall_s, x_bound=run.summary.ratio_to_bound, largest_difference=off,
        )  # fmt: skip

    def counted(self, spec: str) -> dict[str, float]:
        """Operations of an item, by torch; and the best that the device can do is measured and kept."""
        from evenload.devices import DevicePool
        from evenload.devices.rates import known
        from evenload.executor import torch_work

        if not self._part.pretend:
            with DevicePool.find(spec) as pool:
                known.keep_rates(next(iter(pool)), known.measure(self._part.device))
        return torch_work(Network(self._size, device=Place(self._part.device)), 0)

    def factors(self, executor: Any, work: dict[str, float], events: list[Any]) -> None:
        """Which share of the time was useful, with efficiency by torch's counted operations; and a report."""
        from evenload.report.html import write_report

        run = executor.map(self._task, range(self._size.n_items), work=work)
        list(run)
        told = {factor.name: factor.value for factor in run.summary.factors.parts}
        self._part.row("factors", flop_an_item=work["flop"], **told)
        write_report(list(events), self._part.report)


class Greedy:
    """Takes memory by the batch; on a CPU a limit of its own stands in for the GPU's."""

    def __init__(self, bytes_each: int, most: int | None, *, device: Any) -> None:
        self.place, self.bytes_each, self.most = device.torch, bytes_each, most

    def __call__(self, numbers: list[int]) -> list[tuple[int, int]]:
        import torch

        if self.most is not None and len(numbers) > self.most:
            raise MemoryError(f"{len(numbers)} at once")
        held = torch.zeros(len(numbers) * self.bytes_each, dtype=torch.uint8, device=self.place)
        return [(number + int(held[-1]), len(numbers)) for number in numbers]


def out_of_memory(part: Part, executor: Any) -> None:
    """Batches of 32 of which eight fit: all items come back, in batches as large as fit."""
    bytes_each, most = 1000, FITS
    if not part.pretend:
        import torch

        torch.cuda.empty_cache()
        bytes_each, most = int(torch.cuda.mem_get_info()[0] * 0.9 / FITS), None
    began = time.perf_counter()
    found = list(executor.map(functools.partial(Greedy, bytes_each, most), range(96), batch=32))
    part.row(
        "out of memory", all_items=[one for one, _ in found] == list(range(96)), fits=FITS,
        largest_batch=max(n for _, n in found), seconds=time.perf_counter() - began,
    )  # fmt: skip


class Dies:
    """Kills its process inside a kernel, at one item, once."""

    def __init__(self, mark: str, *, device: Any) -> None:
        self.mark, self.place = Path(mark), device.torch

    def __call__(self, number: int) -> int:
        import torch

        side = 64 if self.place == "cpu" else 8192
        square = torch.ones(side, side, device=self.place)
        for _ in range(50):
            square = (square @ square).clamp(0, 1)
        if number == 5 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)  # its kernels are still queued
        return number + int(square[0, 0]) - 1


def killed(part: Part, executor: Any) -> None:
    """A worker that is killed while its kernels run: nothing is lost."""
    mark = part.out.with_suffix(".died")
    mark.unlink(missing_ok=True)
    began = time.perf_counter()
    found = list(executor.map(functools.partial(Dies, str(mark)), range(24)))
    part.row(
        "killed in a kernel", died=mark.exists(), nothing_lost=found == list(range(24)),
        seconds=time.perf_counter() - began,
    )  # fmt: skip


def one_device(part: Part, measurement: Measurement) -> None:
    """All that one set of workers can show, and whether the GPU's memory is free again after them."""
    import evenload
    from evenload.events import EventLog

    events: list[Any] = []
    spec = "cpu*2" if part.pretend else "cuda:0"
    work = measurement.counted(spec)
    free = free_bytes(part)
    with evenload.Executor(spec, events=EventLog(events.append), echo=False) as executor:
        part.tried(f"map over {spec}", lambda: measurement.over(spec, executor))
        part.tried("factors", lambda: measurement.factors(executor, work, events))
        part.tried("out of memory", lambda: out_of_memory(part, executor))
        part.tried("killed in a kernel", lambda: killed(part, executor))
    if free is not None:
        part.row("memory after the workers", free_bytes_before=free, free_bytes_after=free_bytes(part))


def free_bytes(part: Part) -> int | None:
    if part.pretend:
        return None
    import torch

    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]


def over_others(part: Part, measurement: Measurement, name: str, devices: Iterable[Any] | str) -> None:
    """One map over other devices."""
    import evenload

    with evenload.Executor(devices, echo=False) as executor:
        measurement.over(name, executor)


def measure(part: Part) -> None:
    if not part.pretend:
        import torch

        if not torch.cuda.is_available():
            raise NotHere("torch finds no CUDA GPU")
    measurement = Measurement(part)
    one_device(part, measurement)
    if part.pretend:
        return
    for n in REAL.shared:
        name = f"cuda:0, {n} workers"
        part.tried(name, lambda n=n, name=name: over_others(part, measurement, name, sharing(part, n)))
    beside = "cuda:0,cpu*4"
    part.tried(beside, lambda: over_others(part, measurement, beside, beside))


if __name__ == "__main__":
    main(measure)
