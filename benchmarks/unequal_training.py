"""How long is a step of data-parallel training on unequal ranks, over what no division of it can beat?

    python benchmarks/unequal_training.py [--fleets 1:1,1:2,1:4,1:1:2:4] [--steps 20]

Ranks are processes on CPUs that talk through gloo; throttle.py makes them unequal. Methods: DDP with equal
shares; DDP with the right shares set by hand, as is often advised, whose gradient is another one; and
EvenBatches, which is told nothing. All see the same samples in every step. x_bound is the mean of steps 11
and later over that of a batch by the sum of speeds. loss_differs is the largest relative difference of a
step's loss from the same training in one process, in float64. Then a rank slows down to half at step 16, and
one stalls. Last, ranks whose work is real, at 2:1 by duty cycle: there the bound is that of the seconds that
the ranks had themselves.
"""

import argparse
import datetime
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.distributed as dist
from throttle import DeviceTime, DutyCycle
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from evenload.balance.partition import equal, proportional

BATCH, N_SAMPLES, LENGTH, WORDS, WIDTH = 64, 8192, 12, 24, 16
BOUND_S = 0.2  # of a step, on every fleet
WARM_STEPS = 10
METHODS = ("DDP", "DDP, shares by hand", "EvenBatches")
LIMIT_S = 300


class Transformer(nn.Module):
    """Predicts the next word of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.last = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        ahead = nn.Transformer.generate_square_subsequent_mask(
            words.shape[1], device=words.device, dtype=torch.float64
        )
        return self.last(self.layer(self.embedding(words), src_mask=ahead, is_causal=True))


def dataset() -> TensorDataset:
    """Sequences in which a word mostly follows from the two before it."""
    rng = torch.Generator().manual_seed(0)
    words = torch.randint(WORDS, (N_SAMPLES, LENGTH + 1), generator=rng)
    for at in range(2, LENGTH + 1):
        follows = torch.rand(N_SAMPLES, generator=rng) < 0.8
        words[:, at] = torch.where(follows, (words[:, at - 1] + words[:, at - 2]) % WORDS, words[:, at])
    return TensorDataset(words)


def losses_of(model: nn.Module, words: torch.Tensor) -> torch.Tensor:
    """The loss of each sample."""
    said = model(words[:, :-1])
    return cross_entropy(said.transpose(1, 2), words[:, 1:], reduction="none").mean(1)


def fresh_model() -> Transformer:
    torch.manual_seed(0)
    return Transformer().double()


class Rank:
    """One rank of a training: its device, and what it has measured.

    job  of all ranks: speeds, changes (rank -> step -> speed), sample_s, burns, steps, methods, place
    """

    def __init__(self, job: dict, rank: int) -> None:
        self.job, self.rank, self.speeds = job, rank, job["speeds"]
        self.dataset = dataset()
        changes = {int(step): speed for step, speed in job["changes"].get(str(rank), {}).items()}
        self.device = DeviceTime(job["sample_s"], self.speeds[rank], changes)

    def train(self, method: str) -> dict:
        """Train by ``method``; what a step took, the losses of all ranks' samples together, the shares."""
        model = fresh_model().to(self.job["place"])
        self.device.slow(model.embedding)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        parallel = DistributedDataParallel(model)
        clocks, sums, counts, busy = [time.monotonic()], [], [], []
        for step, (words, whole_loss) in enumerate(self.batches(method)):
            begun = time.monotonic()
            self.device.begin(len(words), step)
            burn(len(words) * self.job["burns"], self.job["place"])
            losses = losses_of(parallel, words.to(self.job["place"]))
            optimizer.zero_grad()
            whole_loss(losses).backward()
            optimizer.step()
            busy.append(self.device.ended - begun)
            clocks.append(time.monotonic())
            sums.append(losses.detach().sum().cpu())
            counts.append(len(words))
        total = torch.stack(sums)
        dist.all_reduce(total)
        seen = torch.tensor([counts, busy], dtype=torch.float64)
        every = [torch.empty_like(seen) for _ in self.speeds]
        dist.all_gather(every, seen)
        return {
            "steps_s": [stop - start for start, stop in pairwise(clocks)],
            "losses": (total / BATCH).tolist(),
            "counts": torch.stack([one[0] for one in every], 1).int().tolist(),
            "busy_s": torch.stack([one[1] for one in every], 1).tolist(),
        }

    def batches(self, method: str) -> Iterator[tuple[torch.Tensor, Callable]]:
        """This rank's samples of each step, and how it makes its loss of theirs."""
        if method == METHODS[2]:
            yield from self.even_batches()
            return
        n_ranks = len(self.speeds)
        counts = equal(BATCH, n_ranks) if method == METHODS[0] else proportional(BATCH, self.speeds)
        first = sum(counts[: self.rank])
        for step in range(self.job["steps"]):
            yield self.dataset[step * BATCH + first :][0][: counts[self.rank]], torch.mean

    def even_batches(self) -> Iterator[tuple[torch.Tensor, Callable]]:
        from evenload.training import EvenBatches

        even = EvenBatches(
            range(self.job["steps"] * BATCH), global_batch=BATCH, shuffle=False, stall_s=self.job["stall_s"]
        )
        for (words,) in DataLoader(self.dataset, batch_sampler=even):
            yield words, lambda losses: even.scale(losses.mean())


def burn(n: int, place: str = "cpu") -> None:
    """Work that cannot be done at once for many samples."""
    square = torch.ones(*[48 if place == "cpu" else 1024] * 2, device=place)
    for _ in range(n):
        torch.mm(square, square)
    if place != "cpu":
        torch.cuda.synchronize()


def one_process(n_steps: int) -> list[float]:
    """The losses of the same training in one process."""
    model, found = fresh_model(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    (words,) = dataset().tensors
    for step in range(n_steps):
        loss = losses_of(model, words[step * BATCH : (step + 1) * BATCH]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def be_rank(rank: int, folder: Path) -> None:
    """What each process of a job does; rank 0 writes what all have measured."""
    torch.set_num_threads(1)
    job = json.loads((folder / "job.json").read_text())
    store = dist.FileStore(str(folder / "store"), len(job["speeds"]))
    limit = datetime.timedelta(seconds=job["limit_s"])
    dist.init_process_group("gloo", store=store, rank=rank, world_size=len(job["speeds"]), timeout=limit)
    one = Rank(job, rank)
    found = {method: one.train(method) for method in job["methods"]}
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def run_job(speeds: Sequence[float], **more: Any) -> tuple[dict, list[list[str]]]:
    """Run the ranks of a job; what rank 0 found, {} if it failed, and the lines that each rank said."""
    job = {"speeds": speeds, "changes": {}, "methods": METHODS, "burns": 0, "duty": False, "place": "cpu"}
    job |= {"limit_s": LIMIT_S, "stall_s": 60.0, "ends_all": False, **more}
    job.setdefault("sample_s", BOUND_S * sum(speeds) / BATCH)
    with tempfile.TemporaryDirectory() as text, ExitStack() as stack:
        folder = Path(text)
        (folder / "job.json").write_text(json.dumps(job))
        ranks = []
        for rank, speed in enumerate(speeds):
            errors = stack.enter_context((folder / f"errors{rank}").open("w+"))
            command = [sys.executable, __file__, "--rank", str(rank), "--folder", text]
            ranks.append((subprocess.Popen(command, stderr=errors), errors))
            stack.callback(ranks[-1][0].wait)  # so that its work is known to be the benchmark's
            stack.callback(ranks[-1][0].kill)
            if job["duty"]:
                stack.enter_context(DutyCycle(ranks[-1][0].pid, speed / max(speeds)))
        for process, _ in ranks[: 1 if job["ends_all"] else None]:
            process.wait(LIMIT_S)
        said = [lines_of(errors) for _, errors in ranks]
        path = folder / "found.json"
        return (json.loads(path.read_text()) if path.exists() else {}), said


def lines_of(errors: TextIO) -> list[str]:
    errors.seek(0)
    return [line.strip() for line in errors if line.strip()] or [""]


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def row_of(fleet: str, method: str, found: dict, bound_s: float, reference: list[float]) -> dict:
    """A line of the table: mean step after the first ones, and how far losses are from one process's."""
    step_s = mean(found["steps_s"][WARM_STEPS:])
    pairs = zip(found["losses"], reference, strict=True)
    return {
        "fleet": fleet,
        "method": method,
        "step_s": step_s,
        "x_bound": step_s / bound_s,
        "last_shares": ":".join(map(str, found["counts"][-1])),
        "loss_differs": max(abs(one - other) / other for one, other in pairs),
        "first_loss": found["losses"][0],
        "last_loss": found["losses"][-1],
    }


def fleets_compared(fleets: Sequence[str], n_steps: int) -> tuple[list[dict], dict]:
    """The table of all fleets by device time, and the loss curves of the last one."""
    rows, curves, reference = [], {}, one_process(n_steps)
    for fleet in fleets:
        found, said = run_job([float(one) for one in fleet.split(":")], steps=n_steps)
        if not found:
            raise SystemExit(f"{fleet}: {[lines[-1] for lines in said]}")
        rows += [row_of(fleet, method, one, BOUND_S, reference) for method, one in found.items()]
        curves = {"one process": reference, **{method: one["losses"] for method, one in found.items()}}
    return rows, curves


def slows_down(n_steps: int = 36, at: int = 16) -> dict:
    """A rank falls to half its speed: steps until shares follow, and how they move from then on."""
    speeds = [1.0, 1.0]
    found, said = run_job(speeds, steps=n_steps, methods=METHODS[2:], changes={1: {at: 0.5}})
    if not found:
        raise SystemExit(f"slows down: {[lines[-1] for lines in said]}")
    one = found[METHODS[2]]
    right = proportional(BATCH, [1.0, 0.5])
    near = [abs(counts[1] - right[1]) <= 0.05 * BATCH for counts in one["counts"]]
    followed = next((step for step in range(at, n_steps) if all(near[step : step + 3])), n_steps)
    slower_s = BOUND_S * sum(speeds) / 1.5
    second = [counts[1] for counts in one["counts"]]
    return {
        "slower_from_step": at,
        "x_bound_before": mean(one["steps_s"][WARM_STEPS:at]) / BOUND_S,
        "steps_until_shares_follow": followed - at,
        "x_bound_after": mean(one["steps_s"][followed:]) / slower_s,
        "shares_before": second[at - 1],
        "shares_after": second[-1],
        "largest_change_after": max(abs(b - a) for a, b in pairwise(second[followed:])),
    }


def stalls(at: int = 8) -> dict:
    """A rank whose device never ends its step: what the others say of it, and how soon."""
    limit_s = 5.0
    began = time.monotonic()
    found, said = run_job(
        [1.0, 1.0],
        steps=20,
        methods=METHODS[2:],
        changes={1: {at: 0.0}},
        limit_s=limit_s,
        stall_s=1.0,
        ends_all=True,
    )
    return {
        "stalls_at_step": at,
        "limit_s": limit_s,
        "names_the_rank": not found and any("rank 1 is not done" in line for line in said[0]),
        "seconds_in_all": time.monotonic() - began,
        "said": said[0][0],
    }


def by_duty_cycle(n_steps: int, place: str = "cpu", bound_s: float = BOUND_S) -> list[dict]:
    """Two ranks on ``place`` whose work is real, one of which runs half of the time."""
    torch.set_num_threads(1)
    clock = time.process_time if place == "cpu" else time.perf_counter
    burn(1000, place)
    began = clock()
    burn(2000, place)
    burns = max(1, round(bound_s * 1.5 / BATCH / ((clock() - began) / 2000)))
    found, said = run_job([2.0, 1.0], steps=n_steps, sample_s=0.0, burns=burns, duty=True, place=place)
    if not found:
        raise RuntimeError(f"duty cycle: {[lines[-1] for lines in said]}")
    reference, rows = one_process(n_steps), []
    for method, one in found.items():
        n_each = [sum(some[WARM_STEPS:]) for some in zip(*one["counts"], strict=True)]
        busy_s = [sum(some[WARM_STEPS:]) for some in zip(*one["busy_s"], strict=True)]
        bound_s = BATCH / sum(n / seconds for n, seconds in zip(n_each, busy_s, strict=True))
        rows.append(row_of("2:1 by duty cycle", method, one, bound_s, reference))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fleets", default="1:1,1:2,1:4,1:1:2:4")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--only", choices=("fleets", "slows", "stalls", "duty"), help="print one part")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        be_rank(given.rank, given.folder)
        return
    from record import print_table, record

    parts = {
        "fleets": lambda: fleets_compared(given.fleets.split(","), given.steps),
        "slows": slows_down,
        "stalls": stalls,
        "duty": lambda: by_duty_cycle(given.steps),
    }
    if given.only:
        found = parts[given.only]()
        print_table(found[0] if given.only == "fleets" else found if given.only == "duty" else [found])
        return
    rows, curves = parts["fleets"]()
    record(
        "unequal_training",
        rows + parts["duty"](),
        slows_down=[parts["slows"]()],
        stalls=[parts["stalls"]()],
        losses=curves,
        steps=given.steps,
        batch=BATCH,
        bound_s=BOUND_S,
    )


if __name__ == "__main__":
    main()
