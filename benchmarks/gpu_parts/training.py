"""Part ``training``: two ranks on one GPU, one of them stopped for half of the time, step over bound.

Two ranks cannot share a GPU through NCCL, so they talk through gloo; gradients are on the GPU. The bound is a
batch over the samples that both ranks do in a second while they exchange nothing, throttled as they are.
"""

import argparse
import datetime
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from part import PR_SET_PDEATHSIG, NotHere, Part, main

SPEEDS = (2.0, 1.0)
METHODS = ("DDP", "EvenBatches")
LENGTH = 64  # of a sample, in vectors
REAL = {"batch": 512, "steps": 24, "width": 512, "layers": 4, "passes": 4, "alone_s": 2.0, "warm": 8}
TINY = {"batch": 16, "steps": 6, "width": 16, "layers": 1, "passes": 2, "alone_s": 0.02, "warm": 2}
LIMIT_S = 120.0


def measure(part: Part) -> None:
    if not part.pretend:
        import torch

        if not torch.cuda.is_available():
            raise NotHere("torch finds no CUDA GPU")
    part.tried("two throttled ranks", lambda: trained(part))


def trained(part: Part) -> None:
    """Train by each method on both ranks, and add a row for each."""
    from throttle import DutyCycle

    job = {"device": part.device, **(TINY if part.pretend else REAL)}
    with tempfile.TemporaryDirectory() as text, ExitStack() as stack:
        folder = Path(text)
        (folder / "job.json").write_text(json.dumps(job))
        ranks = []
        for rank, speed in enumerate(SPEEDS):
            ranks.append(subprocess.Popen([sys.executable, __file__, "--rank", str(rank), text]))
            stack.callback(ranks[-1].wait)
            stack.callback(ranks[-1].kill)
            stack.enter_context(DutyCycle(ranks[-1].pid, speed / max(SPEEDS)))
        codes = [process.wait(max(1.0, part.left_s)) for process in ranks]
        if any(codes):
            raise RuntimeError(f"ranks ended with {codes}")
        found = [json.loads((folder / f"found{rank}.json").read_text()) for rank in range(len(SPEEDS))]
    for method in METHODS:
        part.row(f"{method}, speeds 2:1 by duty cycle", **figures(job, [one[method] for one in found]))


def figures(job: dict[str, Any], ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean step after the first ones over what no division of its batch can beat, shares, and losses."""
    clocks = ranks[0]["clocks"]
    step_s = fmean(stop - start for start, stop in list(pairwise(clocks))[job["warm"] :])
    rates = [one["samples_alone"] / one["alone_s"] for one in ranks]
    bound_s = job["batch"] / sum(rates)
    losses = [sum(one["losses"][at] for one in ranks) for at in (0, -1)]
    return {
        "step_s": step_s, "bound_s": bound_s, "x_bound": step_s / bound_s,
        "samples_per_s_alone": rates, "shares": [one["counts"][-1] for one in ranks],
        "first_loss": losses[0], "last_loss": losses[1],
    }  # fmt: skip


def be_rank(rank: int, folder: Path) -> None:
    """What each process does; each writes what it measured."""
    import torch
    import torch.distributed as dist

    end_with_parent()
    job = json.loads((folder / "job.json").read_text())
    store = dist.FileStore(str(folder / "store"), len(SPEEDS))
    limit = datetime.timedelta(seconds=LIMIT_S)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=len(SPEEDS), timeout=limit)
    torch.set_num_threads(1)
    found = {method: Training(job, rank).by(method) for method in METHODS}
    (folder / f"found{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def end_with_parent() -> None:
    """Have the system kill this process when the part is killed."""
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Samples:
    """A data set of random samples, which repeat."""

    def __init__(self, n_samples: int, width: int) -> None:
        import torch

        self._n_samples = n_samples
        self._held = torch.randn(min(n_samples, 2048), LENGTH, width)

    def __len__(self) -> int:
        return self._n_samples

    def __getitem__(self, index: int) -> Any:
        return self._held[index % len(self._held)]


class Training:
    """One rank's training of an encoder to give back its input; all methods see the same samples.

    The encoder is applied several times over, which is work without more to exchange.
    """

    def __init__(self, job: dict[str, Any], rank: int) -> None:
        import torch
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel

        self._job, self._rank = job, rank
        torch.manual_seed(0)
        width = job["width"]
        self._samples = Samples(job["batch"] * job["steps"], width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        encoder = nn.TransformerEncoder(layer, job["layers"], enable_nested_tensor=False)
        whole = nn.Sequential(*[encoder] * job["passes"]).to(job["device"])
        self._model = DistributedDataParallel(whole)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)

    def by(self, method: str) -> dict[str, Any]:
        """Train; clocks of all steps, this rank's shares and parts of the losses, and its speed alone."""
        alone = self._alone()
        clocks, counts, losses = [time.monotonic()], [], []
        for samples, scale in self._batches(method):
            loss = self._step(samples, scale)
            clocks.append(time.monotonic())
            counts.append(len(samples))
            losses.append(loss * len(samples) / self._job["batch"])
        return {"clocks": clocks, "counts": counts, "losses": losses, **alone}

    def _alone(self) -> dict[str, float]:
        """Samples and seconds of this rank without exchange, while the other one does the same."""
        import torch
        import torch.distributed as dist

        share = torch.stack([self._samples[at] for at in range(self._job["batch"] // len(SPEEDS))])
        with self._model.no_sync():
            self._gradients(share, lambda loss: loss)  # compiles, and fills caches
            dist.barrier()
            began, n_samples = time.monotonic(), 0
            while n_samples == 0 or time.monotonic() - began < self._job["alone_s"]:
                self._gradients(share, lambda loss: loss)
                n_samples += len(share)
            alone_s = time.monotonic() - began
        self._optimizer.zero_grad()
        dist.barrier()
        return {"samples_alone": n_samples, "alone_s": alone_s}

    def _batches(self, method: str) -> Iterator[tuple[Any, Callable]]:
        """This rank's samples of each step, and what its loss is multiplied by."""
        from torch.utils.data import DataLoader

        from evenload.training import EvenBatches

        batch, n_samples, share = self._job["batch"], len(self._samples), self._job["batch"] // len(SPEEDS)
        if method == "DDP":
            firsts = range(self._rank * share, n_samples, batch)
            equal = [range(first, first + share) for first in firsts]
            for samples in DataLoader(self._samples, batch_sampler=equal):
                yield samples, lambda loss: loss
            return
        even = EvenBatches(range(n_samples), global_batch=batch, shuffle=False)
        for samples in DataLoader(self._samples, batch_sampler=even):
            yield samples, even.scale

    def _step(self, samples: Any, scale: Callable) -> float:
        self._optimizer.zero_grad()
        loss = self._gradients(samples, scale)
        self._optimizer.step()
        return loss

    def _gradients(self, samples: Any, scale: Callable) -> float:
        import torch

        x = samples.to(self._job["device"])
        loss = (self._model(x) - x).square().mean()
        scale(loss).backward()
        if x.is_cuda:
            torch.cuda.synchronize()
        return loss.item()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        parser = argparse.ArgumentParser()
        parser.add_argument("--rank", type=int)
        parser.add_argument("folder", type=Path)
        be_rank(**vars(parser.parse_args()))
    else:
        main(measure)
