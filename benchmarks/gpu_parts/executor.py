"""Part ``executor``: a torch module over the GPU and CPUs, out of memory, and a worker killed in a kernel."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from part import NotHere, Part, main

ROWS, REAL, TINY = 64, (256, 2048, 8), (12, 64, 2)  # items, width and layers of the module


def sizes(part: Part) -> tuple[int, int, int]:
    return TINY if part.pretend else REAL


class Network:
    """A stack of linear layers on its worker's device; an item is the number of a batch."""

    def __init__(self, width: int, depth: int, *, device: Any) -> None:
        import torch
        from torch import nn

        torch.manual_seed(0)
        self.place = device.torch
        self.width = width
        layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU())]
        self.model = nn.Sequential(*layers).to(self.place)

    def __call__(self, number: int) -> float:
        import torch

        with torch.inference_mode():
            rows = torch.full((ROWS, self.width), 1.0 + number % 7, device=self.place)
            return float(self.model(rows).float().mean())


def plain_loop(part: Part) -> tuple[float, list[float]]:
    """Seconds of a plain torch loop in this process, and what it gave."""

    class Place:
        torch = part.device

    n_items, width, depth = sizes(part)
    network = Network(width, depth, device=Place)
    network(0)
    began = time.perf_counter()
    found = [network(number) for number in range(n_items)]
    return time.perf_counter() - began, found


def over(part: Part, devices: str, plain_s: float, expected: list[float]) -> None:
    """One map over ``devices`` with warm workers, beside the plain loop."""
    import functools

    import evenload

    n_items, width, depth = sizes(part)
    task = functools.partial(Network, width, depth)
    with evenload.Executor(devices) as executor:
        list(executor.map(task, range(len(executor.devices) * 2)))
        began = time.perf_counter()
        run = executor.map(task, range(n_items))
        found = list(run)
        wall_s = time.perf_counter() - began
    off = max(abs(a - b) for a, b in zip(found, expected, strict=True))
    summary = run.summary
    part.row(
        f"map over {devices}", items_s=n_items / wall_s, plain_items_s=n_items / plain_s,
        x_plain=plain_s / wall_s, x_bound=summary.ratio_to_bound, largest_difference=off,
    )  # fmt: skip


def factors(part: Part) -> None:
    """Which share of the time was useful, with the device's efficiency from torch's counted operations."""
    import functools

    import evenload
    from evenload.devices import DevicePool
    from evenload.devices.rates import known, roofline
    from evenload.executor import torch_work

    n_items, width, depth = sizes(part)
    spec = "cpu*1" if part.pretend else "cuda:0"
    task = functools.partial(Network, width, depth)
    with DevicePool.find(spec) as pool:
        (device,) = pool
        if not part.pretend and not known.rates_of(device):
            known.keep_rates(device, roofline.measure(part.device))
    work = torch_work(functools.partial(run_alone, width, depth, part.device), 0)
    run = evenload.map(task, range(n_items), devices=spec, work=work)
    list(run)
    told = {factor.name: factor.value for factor in run.summary.factors.parts}
    part.row(f"factors on {spec}", flop_an_item=work["flop"], **told)


def run_alone(width: int, depth: int, place: str, number: int) -> float:
    class Place:
        torch = place

    return Network(width, depth, device=Place)(number)


class Greedy:
    """Takes memory by the batch; on a CPU a limit of its own stands in for the GPU's."""

    def __init__(self, bytes_each: int, most: int | None, *, device: Any) -> None:
        self.place, self.bytes_each, self.most = device.torch, bytes_each, most

    def __call__(self, numbers: list[int]) -> list[int]:
        import torch

        if self.most is not None and len(numbers) > self.most:
            raise MemoryError(f"{len(numbers)} at once")
        held = torch.empty(len(numbers) * self.bytes_each, dtype=torch.uint8, device=self.place)
        held.zero_()
        return [number + int(held[0]) for number in numbers]


def out_of_memory(part: Part) -> None:
    """Batches of 32 of which eight fit: all items come back, and the device remembers the size that fits."""
    import functools

    import evenload

    if part.pretend:
        bytes_each, most = 1000, 8
    else:
        import torch

        bytes_each, most = int(torch.cuda.get_device_properties(0).total_memory * 0.9 / 8), None
    task = functools.partial(Greedy, bytes_each, most)
    began = time.perf_counter()
    found = list(evenload.map(task, range(64), devices="cpu*1" if part.pretend else "cuda:0", batch=32))
    part.row("out of memory", all_items=found == list(range(64)), seconds=time.perf_counter() - began)


class Dies:
    """Kills its process inside a kernel, at one item, once."""

    def __init__(self, mark: str, *, device: Any) -> None:
        self.mark, self.place = Path(mark), device.torch

    def __call__(self, number: int) -> int:
        import torch

        side = 64 if self.place == "cpu" else 4096
        square = torch.ones(side, side, device=self.place)
        for _ in range(50):
            square = (square @ square).clamp(0, 1)
        if number == 5 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)  # its kernels are still queued
        return number + int(square[0, 0]) - 1


def killed(part: Part) -> None:
    """A worker that is killed while its kernels run: nothing lost, and the GPU's memory comes back."""
    import functools

    import evenload

    mark = part.out.with_suffix(".died")
    mark.unlink(missing_ok=True)
    began = time.perf_counter()
    spec = "cpu*1" if part.pretend else "cuda:0"
    found = list(evenload.map(functools.partial(Dies, str(mark)), range(24), devices=spec))
    part.row(
        "killed in a kernel", died=mark.exists(), nothing_lost=found == list(range(24)),
        seconds=time.perf_counter() - began,
    )  # fmt: skip


def measure(part: Part) -> None:
    if not part.pretend:
        import torch

        if not torch.cuda.is_available():
            raise NotHere("torch finds no CUDA GPU")
    plain_s, expected = plain_loop(part)
    fleets = ("cpu*1", "cpu*2") if part.pretend else ("cuda:0", "cuda:0,cpu*4")
    for devices in fleets:
        part.tried(f"map over {devices}", lambda devices=devices: over(part, devices, plain_s, expected))
    part.tried("factors", lambda: factors(part))
    part.tried("out of memory", lambda: out_of_memory(part))
    part.tried("killed in a kernel", lambda: killed(part))


if __name__ == "__main__":
    main(measure)
