"""Where the time of an item that does nothing goes, in microseconds, beside ``multiprocessing.Pool.map``.

    python benchmarks/executor_tiny_items.py [--rounds 15]

Wall seconds are the best of the rounds, with two workers that are up; CPU seconds are of a hundred maps of
ten thousand items. The parts of a worker are timed alone, in this process: the mark of which item runs since
when, by which a crash or a time limit is known to be that item's; the look whether an item has changed its
process; and the call of the function with the keeping of its result.
"""

import argparse
import multiprocessing
import time
import timeit
from collections.abc import Callable

import psutil
from bench_tasks import same
from record import record

import evenload
from evenload.executor.transport.progress_cell import ProgressCell, make_progress_file
from evenload.executor.worker.process_state import ProcessState

N, N_MAPS = 10_000, 100
N_CALLS = 300_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    with evenload.Executor("cpu*2") as executor:
        ours = map_parts(lambda n: list(executor.map(same, range(n))), rounds)
    with multiprocessing.Pool(2) as pool:
        theirs = map_parts(lambda n: pool.map(same, range(n)), rounds)
    rows = [{"part": part, "evenload": us, "Pool.map": theirs[part]} for part, us in ours.items()]
    rows += [{"part": part, "evenload": us, "Pool.map": None} for part, us in worker_parts().items()]
    record("executor_tiny_items", rows)


def map_parts(work: Callable[[int], list[int]], rounds: int) -> dict[str, float]:
    """Microseconds an item of maps of ten thousand."""
    assert work(2 * N) == list(range(2 * N))
    one_s, all_s = (min(timeit.repeat(lambda n=n: work(n), number=1, repeat=rounds)) for n in (1, N))
    caller_s, workers_s = cpu_seconds(lambda: [work(N) for _ in range(N_MAPS)])
    return {
        "a map, wall": all_s / N * 1e6,
        "of it the start and end of a map": one_s / N * 1e6,
        "the calling process, CPU": caller_s / N_MAPS / N * 1e6,
        "the workers, CPU": workers_s / N_MAPS / N * 1e6,
    }


def cpu_seconds(work: Callable[[], object]) -> tuple[float, float]:
    """CPU seconds of this process, and of its children, during ``work``."""
    children = psutil.Process().children(recursive=True)

    def clocks() -> tuple[float, float]:
        return time.process_time(), sum(sum(child.cpu_times()[:2]) for child in children)

    before = clocks()
    work()
    own, others = (now - then for now, then in zip(clocks(), before, strict=True))
    return own, others


def worker_parts() -> dict[str, float]:
    """Microseconds of what a worker does for each item."""
    cell, state, values = ProgressCell(make_progress_file()), ProcessState(), []
    cell.begin(1)
    parts = {
        "of the workers: the mark of the item": lambda: cell.enter(3),
        "of the workers: the look at the process": state.is_untouched,
        "of the workers: the call": lambda: values.append(same(3)),
    }
    empty_s = min(timeit.repeat(lambda: None, number=N_CALLS, repeat=5))
    return {
        part: (min(timeit.repeat(call, number=N_CALLS, repeat=5)) - empty_s) / N_CALLS * 1e6
        for part, call in parts.items()
    }


if __name__ == "__main__":
    main()
