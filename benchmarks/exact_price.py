"""What does a step cost whose gradient is exact, by the size of its grains?

    python benchmarks/exact_price.py [--models wide,transformer] [--grains 4,8,16,32] [--steps 12]

Two ranks of one thread each, which talk through gloo, train the same samples: by DDP with equal shares, by
EvenBatches, by EvenBatches with micro-batches, and by EvenBatches(exact=True) with grains of the same size.
They take turns, each with a new model; figures are medians of all steps after the first four of a turn.
"wide" has many parameters for its work, which is the worst for an exact sum, "transformer" few. x inexact is
over the fastest of EvenBatches without exact; x micro-batches over that with the same size, and x cpu in
seconds of rank 0's processor, which others disturb less. Bytes are those that rank 0's sockets have sent, as
the kernel counts them; on paper, a ring over n ranks sends 2 (n - 1) / n times the buffer: 4 bytes for each
parameter, 16 if exact.
"""

import argparse
import contextlib
import os
import socket
import statistics
import struct
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import evenload

BATCH, N_RANKS, WARM_STEPS = 64, 2, 4
SENT_AT = 200  # of tcpi_bytes_sent in Linux's struct tcp_info


def model_of(name: str) -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    if name == "wide":
        sizes = [256, 1024, 1024, 512, 16]
        layers = [one for a, b in pairwise(sizes) for one in (nn.Linear(a, b), nn.ReLU())]
        return nn.Sequential(*layers[:-1])
    layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
    parts = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), nn.Flatten(), nn.Linear(48 * 128, 16)
    return nn.Sequential(nn.Embedding(256, 128), *parts)


def dataset_of(name: str, n_samples: int) -> Any:
    import torch
    from torch.utils.data import TensorDataset

    made = torch.Generator().manual_seed(1)
    shape = (n_samples, 256 if name == "wide" else 48)
    x = torch.randn(shape, generator=made) if name == "wide" else torch.randint(256, shape, generator=made)
    return TensorDataset(x, torch.randint(16, (n_samples,), generator=made))


def bytes_sent() -> int:
    """What all TCP connections of this process have sent so far."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile, or a socket of another family
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(name))) as one:
                    told = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    total += struct.unpack_from("Q", told, SENT_AT)[0]
    return total


def losses(method: str, name: str, grain: int | None, n_steps: int, model: Any) -> Iterator[Iterator[Any]]:
    """Of each step, the losses to go backward from."""
    import torch.distributed as dist
    from torch.nn.functional import cross_entropy
    from torch.utils.data import DataLoader

    from evenload.training import EvenBatches

    dataset = dataset_of(name, BATCH * n_steps)
    if method == "DDP":
        share, rank = BATCH // N_RANKS, dist.get_rank()
        for step in range(n_steps):
            x, y = dataset[step * BATCH + rank * share :][:2]
            yield iter([cross_entropy(model(x[:share]), y[:share])])
        return
    even = EvenBatches(dataset, global_batch=BATCH, micro_batch=grain, exact=method == "exact")
    loader = DataLoader(dataset, batch_sampler=even)
    if grain is None:
        for x, y in loader:
            yield iter([even.scale(cross_entropy(model(x), y))])
        return
    for step in even.steps(loader, model):
        yield (even.scale(cross_entropy(model(x), y)) for x, y in step)


def turn(method: str, name: str, grain: int | None, n_steps: int) -> tuple[list[float], list[float], float]:
    """Seconds of each step after the first ones, those of the processor, and bytes that a step sends."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(model_of(name))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    clocks, busy, sent = [], [], []
    for step in losses(method, name, grain, n_steps + WARM_STEPS, model):
        for loss in step:
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        clocks.append(time.perf_counter())
        busy.append(time.process_time())
        sent.append(bytes_sent())
    at = WARM_STEPS - 1
    seconds, cpu = ([stop - start for start, stop in pairwise(one[at:])] for one in (clocks, busy))
    return seconds, cpu, (sent[-1] - sent[at]) / n_steps


def measured(rank: Any, names: list[str], grains: list[int], n_steps: int, n_rounds: int) -> list[dict]:
    """What each rank does; the table of all models and methods."""
    import torch

    torch.set_num_threads(1)
    methods = [("DDP", None), ("EvenBatches", None)]
    methods += [(how, grain) for grain in grains for how in ("micro-batches", "exact")]
    rows = []
    for name in names:
        seconds: dict[Any, list[float]] = {one: [] for one in methods}
        busy: dict[Any, list[float]] = {one: [] for one in methods}
        sent: dict[Any, float] = {}
        for _ in range(n_rounds):
            for one in methods:
                found, cpu, sent[one] = turn(one[0], name, one[1], n_steps)
                seconds[one] += found
                busy[one] += cpu
        step_s = {one: statistics.median(found) for one, found in seconds.items()}
        cpu_s = {one: statistics.median(found) for one, found in busy.items()}
        inexact_s = min(
            found for (how, _), found in step_s.items() if how in ("EvenBatches", "micro-batches")
        )
        n_parameters = sum(one.numel() for one in model_of(name).parameters())
        for how, grain in methods:
            is_exact, own_s = how == "exact", step_s[how, grain]
            on_paper = 2 * (N_RANKS - 1) / N_RANKS * n_parameters * (16 if is_exact else 4)
            rows.append({
                "model": name, "parameters": n_parameters, "method": how, "grain": grain,
                "step_ms": 1e3 * own_s, "x DDP": own_s / step_s["DDP", None], "x inexact": own_s / inexact_s,
                "x micro-batches": own_s / step_s["micro-batches", grain] if is_exact else None,
                "cpu_ms": 1e3 * cpu_s[how, grain],
                "x cpu": cpu_s[how, grain] / cpu_s["micro-batches", grain] if is_exact else None,
                "sent_mb": sent[how, grain] / 1e6, "on_paper_mb": on_paper / 1e6,
            })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="wide,transformer")
    parser.add_argument("--grains", default="4,8,16,32")
    parser.add_argument("--steps", type=int, default=12, help="of a turn that are timed")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    from record import record

    names, grains = given.models.split(","), [int(one) for one in given.grains.split(",")]
    rows = evenload.gang(
        lambda rank: measured(rank, names, grains, given.steps, given.rounds),
        devices=f"cpu*{N_RANKS}",
        echo=False,
    )[0]
    record("exact_price", rows, batch=BATCH, ranks=N_RANKS, steps=given.steps, rounds=given.rounds)


if __name__ == "__main__":
    main()
