"""Ranks that are delayed at random before collectives, under torch's profiler, and what they measured.

    python delayed_ranks.py FOLDER RANK WORLD STEPS SEED LEAST_MS MOST_MS

Every rank writes its trace, ``rank0.json.gz``, and ``rank0-measured.json``: of each step, when it came to the
collective, by a clock that all processes of the machine share, and the delay that it was given, if any.
"""

import argparse
import json
import random
import time
import warnings
from pathlib import Path

import torch
from torch import distributed
from torch.profiler import ProfilerActivity, profile, record_function

PLACES = ("kernels", "input", "other code")


Delay = tuple[int, str, float]  # rank, place, seconds


def delays(n_steps: int, world: int, seed: int, least_ms: float, most_ms: float) -> list[Delay]:
    """One delay for each step, the same in every process."""
    draw = random.Random(seed)
    return [
        (draw.randrange(world), draw.choice(PLACES), draw.uniform(least_ms, most_ms) / 1e3)
        for _ in range(n_steps)
    ]


def delay(place: str, seconds: float, matrix: torch.Tensor) -> None:
    """Spend ``seconds`` on operators, in a data loader, or asleep."""
    until = time.monotonic() + seconds
    if place == "kernels":
        while time.monotonic() < until:
            torch.mm(matrix, matrix)
    elif place == "input":
        with record_function("enumerate(DataLoader)#_SlowIter.__next__"):
            time.sleep(seconds)
    else:
        time.sleep(seconds)


def main(folder: Path, rank: int, world: int, n_steps: int, seed: int, *limits_ms: float) -> None:
    """Run one rank to its end."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    matrix, gradient = torch.ones(128, 128), torch.ones(1000)
    planned = delays(n_steps, world, seed, *limits_ms) if max(limits_ms) > 0 else []
    came_ns = []
    distributed.all_reduce(gradient)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            came_ns.append(time.monotonic_ns())  # profilers start at different times
            distributed.all_reduce(gradient)
            for step in range(n_steps):
                for _ in range(10):
                    torch.mm(matrix, matrix)
                if planned and planned[step][0] == rank:
                    delay(*planned[step][1:], matrix)
                came_ns.append(time.monotonic_ns())
                distributed.all_reduce(gradient)
    profiler.export_chrome_trace(str(folder / f"rank{rank}.json.gz"))
    distributed.destroy_process_group()
    (folder / f"rank{rank}-measured.json").write_text(json.dumps({"came_ns": came_ns, "planned": planned}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    for name in ("rank", "world", "steps", "seed"):
        parser.add_argument(name, type=int)
    parser.add_argument("limits_ms", type=float, nargs=2)
    given = parser.parse_args()
    main(given.folder, given.rank, given.world, given.steps, given.seed, *given.limits_ms)
