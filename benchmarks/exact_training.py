"""Do weights come out as the same bits on any fleet, with its joins, leaves, kills and resumes?

    exact_training.py [--histories 50] [--steps 1000] [--minutes 60] [--kinds "mlp SGD float32,..."]

A history is one training of so many steps, by one fleet after the other: 1, 2, 3 or 5 gloo ranks in new
processes, whose speeds are drawn anew every two steps, so that their shares change. A fleet goes on from the
last checkpoint. It ends after a drawn number of steps, or when one of its ranks ends itself by SIGKILL within
a step: then the others are killed, too, and what was trained since the checkpoint is lost. The oracle of a
kind is a plain loop in torch, which adds up the gradients of grains as Python's whole numbers: each rank
compares its weights with that loop's after every step. Each kind has a history, then each has the next one.
Speed is not measured: other programs may run meanwhile.
"""

import argparse
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # optimizers import it: 1.5 s in each rank otherwise
import torch.distributed as dist
from record import record

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import exact_ranks

SIZES = 1, 2, 3, 5
TYPES = ("SGD", "float32"), ("AdamW", "bfloat16"), ("AdamW", "float32"), ("SGD", "bfloat16")
KINDS = [f"{shape} {how} {dtype}" for how, dtype in TYPES for shape in ("mlp", "conv", "attention")]
KINDS += ["dropout AdamW float32"]
DIFFERS, LIMIT_S = 3, 600
FORK = multiprocessing.get_context("fork")  # a rank starts within milliseconds: torch is imported


@dataclass(frozen=True)
class Fleet:
    """Ranks that go on with a training until they leave, or until one of them dies.

    start, until  steps
    every         so many steps a checkpoint is written
    victim        rank that kills itself as it begins its grain number ``grain``; None: none does
    """

    n_ranks: int
    start: int
    until: int
    every: int
    speeds: int
    is_wrapped: bool
    victim: int | None
    grain: int


def drawn_fleet(drawn: random.Random, start: int, n_steps: int) -> Fleet:
    """The fleet that goes on at step ``start``."""
    n_ranks, until = drawn.choice(SIZES), min(n_steps, start + drawn.randint(20, max(20, n_steps // 3)))
    every, speeds, is_wrapped = drawn.randint(5, 60), drawn.randrange(10_000), drawn.random() < 0.5
    victim, grain = drawn.randrange(2 * n_ranks), drawn.randint(1, 2 * (until - start))
    is_wrapped &= n_ranks > 1
    return Fleet(
        n_ranks, start, until, every, speeds, is_wrapped, victim if victim < n_ranks else None, grain
    )


class Rank:
    """A rank of a fleet, in a process of its own.

    truth   digest of the weights after each step
    counts  [ranks + 1] comparisons that each rank has made; last, how often shares changed
    """

    def __init__(self, kind: str, fleet: Fleet, rank: int, folder: Path, truth: list[str], counts: Any):
        self.fleet, self.rank, self.truth, self.counts = fleet, rank, truth, counts
        self.path = folder / "checkpoint"
        saved = self.path.read_bytes() if self.path.exists() else None
        self.training = exact_ranks.Training(kind, None, saved, fleet.is_wrapped, fleet.speeds)
        if self.training.step != fleet.start:
            raise AssertionError(f"the checkpoint is of step {self.training.step}, not {fleet.start}")
        self.shares = self.training.even.shares.counts
        self.training.after_step = self.after_step
        if rank == fleet.victim:
            self.training.model.register_forward_pre_hook(killer(fleet.grain))

    def after_step(self) -> None:
        """Compare the weights with the oracle's, and save them where it is time."""
        step = self.training.step
        if exact_ranks.digest_of(self.training.model) != self.truth[step - 1]:
            os._exit(DIFFERS)
        self.counts[self.rank] += 1
        if self.rank:
            return
        shares = self.training.even.shares.counts
        self.counts[-1] += shares != self.shares
        self.shares = shares
        if step == self.fleet.until or step % self.fleet.every == 0:
            draft = self.path.with_suffix(".draft")
            draft.write_bytes(self.training.save())
            draft.replace(self.path)
            self.path.with_suffix(".step").write_text(str(step))


def killer(n: int) -> Callable[..., None]:
    """A hook of a model that ends its process, as the kernel would, at the n-th call."""
    left = [n]

    def count(*_: Any) -> None:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    return count


def be_rank(kind: str, fleet: Fleet, rank: int, folder: Path, store: Path, *more: Any) -> None:
    """What each process does."""
    os.dup2(os.open(folder / f"errors{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    torch.set_num_threads(1)
    if fleet.n_ranks > 1:
        shared = dist.FileStore(str(store), fleet.n_ranks)
        dist.init_process_group("gloo", store=shared, rank=rank, world_size=fleet.n_ranks)
    Rank(kind, fleet, rank, folder, *more).training.train(fleet.until - fleet.start)
    if fleet.n_ranks > 1:
        dist.barrier()  # nobody leaves while others are in the last exchange


def run_fleet(kind: str, fleet: Fleet, folder: Path, truth: list[str], row: dict[str, Any]) -> bool:
    """Run a fleet to its end, and count it; returns whether all weights were the oracle's."""
    counts = FORK.RawArray("q", fleet.n_ranks + 1)
    store = folder / f"store{row['fleets']}"
    ranks = [
        FORK.Process(target=be_rank, args=(kind, fleet, rank, folder, store, truth, counts), daemon=True)
        for rank in range(fleet.n_ranks)
    ]
    for one in ranks:
        one.start()
    left, ended_s = set(ranks), time.monotonic() + LIMIT_S
    while left and not any(one.exitcode for one in ranks):
        ready = wait([one.sentinel for one in left], ended_s - time.monotonic())
        if not ready:
            raise SystemExit(f"{kind}: {fleet} did not end within {LIMIT_S} s")
        for one in [one for one in left if one.sentinel in ready]:
            one.join()
            left.remove(one)
    time.sleep(0.02 if left else 0)  # the dead rank's error may come after those of who lost it
    codes = [one.exitcode for one in ranks]
    for one in left:
        one.kill()
        one.join()
    is_killed = fleet.victim is not None and ranks[fleet.victim].exitcode == -signal.SIGKILL
    is_right = DIFFERS not in codes
    if is_right and any(codes) and not is_killed:
        said = [(folder / f"errors{rank}").read_text()[-2000:] for rank in range(fleet.n_ranks)]
        raise SystemExit(f"{kind}: {fleet} failed with {codes}\n" + "\n".join(said))
    row["fleets"] += 1
    row[f"of {fleet.n_ranks}"] += 1
    row["kills"] += is_killed
    row["steps"] += counts[0]
    row["changes of shares"] += counts[fleet.n_ranks]
    row["comparisons"] += sum(counts[: fleet.n_ranks])
    return is_right


def run_history(kind: str, seed: int, n_steps: int, truth: list[str], row: dict[str, Any]) -> None:
    """Train once by a random history of fleets; counts in ``row`` what happened."""
    drawn, step, n_ranks = random.Random(f"{kind} {seed}"), 0, 0
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        while step < n_steps:
            fleet = drawn_fleet(drawn, step, n_steps)
            row["joins"] += 0 < n_ranks < fleet.n_ranks
            row["leaves"] += n_ranks > fleet.n_ranks
            if not run_fleet(kind, fleet, folder, truth, row):
                row["histories that differ"] += 1
                return
            path = folder / "checkpoint.step"
            step, n_ranks = int(path.read_text()) if path.exists() else 0, fleet.n_ranks
    row["histories"] += 1


def by_hand(kind: str, n_steps: int) -> list[str]:
    """The oracle's digests, made in a process of its own: what forks ranks has no threads of torch."""
    with FORK.Pool(1) as pool:
        return pool.apply(exact_ranks.by_hand, (kind, n_steps))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--histories", type=int, default=50, help="of each kind")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=600, help="no history is begun after so many")
    parser.add_argument("--kinds", default=",".join(KINDS))
    given = parser.parse_args()
    until_s = time.monotonic() + 60 * given.minutes
    names = ["histories", "histories that differ", "fleets", *(f"of {n}" for n in SIZES), "joins", "leaves"]
    names += ["kills", "steps", "changes of shares", "comparisons"]
    truths = {kind: by_hand(kind, given.steps) for kind in given.kinds.split(",")}
    rows = {
        kind: {"kind": kind, **dict.fromkeys(names, 0), "weights": truths[kind][-1][:16]} for kind in truths
    }
    moved = {kind: len(set(truth)) for kind, truth in truths.items()}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    try:
        for seed in range(given.histories):
            for kind, truth in truths.items():
                if time.monotonic() < until_s:
                    run_history(kind, seed, given.steps, truth, rows[kind])
                    print(seed, kind, rows[kind]["fleets"], flush=True)
    finally:
        record(
            "exact_training",
            list(rows.values()),
            is_of_speed=False,
            steps_of_a_history=given.steps,
            different_weights=moved,
        )


if __name__ == "__main__":
    main()
