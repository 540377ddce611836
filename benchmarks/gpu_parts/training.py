"""Part ``training``: two ranks on one GPU, one of them stopped for half of the time, step over bound.

Two ranks cannot share a GPU through NCCL, so they talk through gloo; gradients are on the GPU. The bound is
that of the seconds that the ranks had themselves.
"""

import datetime
import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

from part import NotHere, Part, main

SPEEDS = (2.0, 1.0)
METHODS = ("DDP", "EvenBatches")
WARM_STEPS, LIMIT_S = 5, 120.0


def measure(part: Part) -> None:
    import torch

    if not part.pretend and not torch.cuda.is_available():
        raise NotHere("torch finds no CUDA GPU")
    for method in METHODS:
        part.tried(method, lambda method=method: trained(part, method))


def trained(part: Part, method: str) -> None:
    """Train by ``method`` on both ranks, and add a row."""
    from throttle import DutyCycle

    job = {"device": part.device, "method": method, "pretend": part.pretend}
    with tempfile.TemporaryDirectory() as text, ExitStack() as stack:
        folder = Path(text)
        (folder / "job.json").write_text(json.dumps(job))
        ranks = []
        for rank, speed in enumerate(SPEEDS):
            ranks.append(subprocess.Popen([sys.executable, __file__, "--rank", str(rank), text]))
            stack.callback(ranks[-1].wait)
            stack.callback(ranks[-1].kill)
            stack.enter_context(DutyCycle(ranks[-1].pid, speed / max(SPEEDS)))
        codes = [process.wait(max(10.0, min(LIMIT_S, part.left_s))) for process in ranks]
        if any(codes):
            raise RuntimeError(f"ranks ended with {codes}")
        found = [json.loads((folder / f"found{rank}.json").read_text()) for rank in range(len(SPEEDS))]
    part.row(f"{method}, speeds 2:1 by duty cycle", **figures(found))


def figures(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean step after the first ones over what no division of it can beat, shares, and the last loss."""
    steps = [stop - start for start, stop in pairwise(found[0]["clocks"])][WARM_STEPS:]
    n_each = [sum(one["counts"][WARM_STEPS:]) for one in found]
    busy_s = [sum(one["busy_s"][WARM_STEPS:]) for one in found]
    batch = sum(one["counts"][-1] for one in found)
    bound_s = batch / sum(n / seconds for n, seconds in zip(n_each, busy_s, strict=True))
    step_s = sum(steps) / len(steps)
    return {
        "step_s": step_s, "x_bound": step_s / bound_s, "shares": [one["counts"][-1] for one in found],
        "losses": [found[0]["losses"][0], found[0]["losses"][-1]],
    }  # fmt: skip


def be_rank(rank: int, folder: Path) -> None:
    """What each process does; each writes what it measured."""
    import torch
    import torch.distributed as dist

    job = json.loads((folder / "job.json").read_text())
    limit = datetime.timedelta(seconds=LIMIT_S)
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(folder / "store"), len(SPEEDS)), rank=rank, world_size=len(SPEEDS),
        timeout=limit,
    )  # fmt: skip
    torch.set_num_threads(1)
    (folder / f"found{rank}.json").write_text(json.dumps(train(job, rank)))
    dist.destroy_process_group()


def train(job: dict[str, Any], rank: int) -> dict[str, Any]:
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

    from evenload.training import EvenBatches

    batch, n_steps, width, depth = (16, 8, 16, 1) if job["pretend"] else (256, 60, 1024, 6)
    torch.manual_seed(0)
    samples = TensorDataset(torch.randn(batch * n_steps, 16, width))
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    model = DistributedDataParallel(nn.TransformerEncoder(layer, depth).to(job["device"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    even = EvenBatches(range(batch * n_steps), global_batch=batch, shuffle=False)
    share = batch // len(SPEEDS)
    rows = [samples[step * batch + rank * share :][0][:share] for step in range(n_steps)]
    batches = ((one,) for one in rows) if job["method"] == "DDP" else DataLoader(samples, batch_sampler=even)
    clocks, counts, busy_s, losses = [time.monotonic()], [], [], []
    for (given,) in batches:
        begun = time.thread_time()
        x = given.to(job["device"])
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        (even.scale(loss) if job["method"] != "DDP" else loss).backward()
        optimizer.step()
        if job["device"] != "cpu":
            torch.cuda.synchronize()
        busy_s.append(max(1e-6, time.thread_time() - begun))
        clocks.append(time.monotonic())
        counts.append(len(x))
        losses.append(float(loss.detach()))
    return {"clocks": clocks, "counts": counts, "busy_s": busy_s, "losses": losses}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        be_rank(int(sys.argv[2]), Path(sys.argv[3]))
    else:
        main(measure)
