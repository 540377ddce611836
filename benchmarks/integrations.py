"""What a changed line costs and brings: evenload's integrations beside what they take the place of.

    python benchmarks/integrations.py [--only "joblib, evenload;joblib, loky"]

Each in an interpreter of its own. "task, us": a task that returns its argument, two workers that are warm
(for datasets a batch, for generation a prompt in a call of its own). "8 MB, MB/s": arrays of 8 MB there and
back, with one added. "300 on 1:2:4:8": 300 items of lognormal cost on four devices of these speeds, which
nobody knows; a device sleeps for cost / speed. The figure is bound / time of what was worked through, 1.0 is
what nobody can beat; one draw, with workers that are warm where they can be. Processes of datasets start
with each map, and what it makes is written to its file, batches of one row each. Takes about a minute.
"""

import functools
import importlib.util
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from typing import Any

from bench_tasks import SPEEDS, bound_s, costs, work
from executor_overhead import all_up, asked, in_fresh_interpreter

N_TASKS, N_BATCHES, N_ARRAYS, N_ARRAYS_STORED = 2_000, 200, 24, 8
N_ITEMS, WORK_S = 300, 30.0  # on a device of speed 1
ARRAY_BYTES = 8 << 20


def items() -> list[float]:
    return costs(N_ITEMS, WORK_S)


def sleeper(folder: str) -> Callable[[float], int]:
    return functools.partial(work, folder=folder, draw=1)


# --- maps of functions ----------------------------------------------------------------------------

Map = Callable[[Callable, Sequence[Any]], list[Any]]


def joblib_of(backend: str, n: int, until_done: ExitStack) -> Map:
    import joblib

    if backend == "evenload":
        import evenload.joblib  # noqa: F401 (registers it)

        until_done.enter_context(joblib.parallel_config("evenload", devices=f"cpu*{n}"))
    else:
        until_done.enter_context(joblib.parallel_config(backend))
    jobs = until_done.enter_context(joblib.Parallel(n_jobs=n))
    return lambda fn, values: jobs(joblib.delayed(fn)(value) for value in values)


def futures_of(kind: str, n: int, until_done: ExitStack) -> Map:
    if kind == "evenload":
        from evenload.futures import Executor

        pool: Any = Executor(f"cpu*{n}")
    else:
        pool = ProcessPoolExecutor(n, multiprocessing.get_context("spawn"))
    until_done.enter_context(pool)
    return lambda fn, values: list(pool.map(fn, values))


def measure_map(open_map: Callable[[int, ExitStack], Map]) -> dict[str, float]:
    import numpy as np
    from bench_tasks import add_one, same

    found: dict[str, float] = {}
    with ExitStack() as until_done:
        run = open_map(2, until_done)
        run(same, range(200))
        taken = [timed(run, same, range(N_TASKS)) for _ in range(3)]
        found["task, us"] = min(taken) / N_TASKS * 1e6
        arrays = [np.zeros(ARRAY_BYTES // 8) for _ in range(N_ARRAYS)]
        run(add_one, arrays[:4])
        found["8 MB, MB/s"] = (
            N_ARRAYS * ARRAY_BYTES / 1e6 / min(timed(run, add_one, arrays) for _ in range(2))
        )
    with ExitStack() as until_done:
        run = open_map(len(SPEEDS), until_done)
        folder = all_up(run, len(SPEEDS))
        found["300 on 1:2:4:8"] = bound_s(items()) / timed(run, sleeper(folder), items())
    return found


def timed(run: Callable, *arguments: Any) -> float:
    began = time.perf_counter()
    result = run(*arguments)
    taken = time.perf_counter() - began
    assert len(result) == len(arguments[-1])
    return taken


# --- datasets -------------------------------------------------------------------------------------


def slow_batch(batch: dict, folder: str) -> dict:
    return {"device": [sleeper(folder)(cost) for cost in batch["cost"]]}


def same_batch(batch: dict) -> dict:
    return {"same": batch["cost"]}


def arrays_of_batch(batch: dict) -> dict:
    import numpy as np

    return {"array": [np.asarray(array) + 1 for array in batch["array"]]}


def measure_datasets(kind: str) -> dict[str, float]:
    import datasets
    import numpy as np

    import evenload
    import evenload.datasets

    datasets.disable_progress_bars()
    home = tempfile.mkdtemp()
    slots = os.path.join(home, "slots")
    os.mkdir(slots)

    def stored(name: str, columns: dict, features: Any = None) -> Any:
        datasets.Dataset.from_dict(columns, features=features).save_to_disk(f"{home}/{name}")
        return datasets.load_from_disk(f"{home}/{name}")

    def run(dataset: Any, n: int, function: Callable, **options: Any) -> Any:
        if kind == "evenload":
            return evenload.datasets.map(dataset, function, executor=executors[n], **options)
        return dataset.map(function, batched=True, num_proc=n, **options)

    small = stored("small", {"cost": items()})
    many = stored("many", {"cost": [0.0] * N_BATCHES})
    column = {"array": datasets.List(datasets.Value("float64"))}
    large = stored(
        "large", {"array": [np.zeros(ARRAY_BYTES // 8)] * N_ARRAYS_STORED}, datasets.Features(column)
    )
    with ExitStack() as until_done:
        executors = {n: until_done.enter_context(evenload.Executor(f"cpu*{n}")) for n in (2, len(SPEEDS))} \
            if kind == "evenload" else {}  # fmt: skip
        for n in executors:
            run(many, n, same_batch, batch_size=N_BATCHES // 8, load_from_cache_file=False)
        fresh = {"load_from_cache_file": False, "batch_size": 1}
        map_many = functools.partial(run, many, 2, same_batch, **fresh)
        found = {"task, us": min(timed(lambda _: map_many(), many) for _ in range(3)) / N_BATCHES * 1e6}
        map_large = functools.partial(run, large.with_format("numpy"), 2, arrays_of_batch, **fresh)
        of_bytes = N_ARRAYS_STORED * ARRAY_BYTES / 1e6
        found["8 MB, MB/s"] = of_bytes / timed(lambda _: map_large(writer_batch_size=1), large)
        options = {"fn_kwargs": {"folder": slots}, **fresh}
        found["300 on 1:2:4:8"] = bound_s(items()) / timed(
            lambda _: run(small, len(SPEEDS), slow_batch, **options), small
        )
    shutil.rmtree(home)
    return found


# --- engines that write ---------------------------------------------------------------------------


class SlowEngine:
    """Takes as long for a prompt as its length says, on a device of some speed."""

    def __init__(self, model: str, *, device: Any = None):
        self.folder = model

    def generate(self, prompts: Sequence[str]) -> list[str]:
        for prompt in prompts:
            if prompt:
                sleeper(self.folder)(len(prompt) / 1000)
        return list(prompts)


def loop_over_engine(folder: str, share: tuple[int, Sequence[str]]) -> list[str]:
    """What a process of the plain loop does: all of its share, on the device of the same number."""
    os.environ["EVENLOAD_DEVICE"] = f"cpu:{share[0]}"
    engine = SlowEngine(folder)
    return [engine.generate([prompt])[0] for prompt in share[1]]


def plain_loop(folder: str, prompts: list[str], n: int) -> tuple[list[str], float]:
    """A process for each engine, each with an equal share of the prompts."""
    shares = [prompts[at * len(prompts) // n : (at + 1) * len(prompts) // n] for at in range(n)]
    with multiprocessing.get_context("spawn").Pool(n) as pool:
        all_up(lambda fn, given: pool.map(fn, given, chunksize=1), n)
        began = time.perf_counter()
        work = functools.partial(loop_over_engine, folder)
        done = pool.map(work, list(enumerate(shares)), chunksize=1)
        return [text for share in done for text in share], time.perf_counter() - began


def measure_generation(kind: str) -> dict[str, float | None]:
    import evenload

    prompts = ["x" * round(1000 * cost) for cost in items()]
    real = [len(prompt) / 1000 for prompt in prompts]
    found: dict[str, float | None] = {}
    for n, given in ((2, [""] * N_TASKS), (len(SPEEDS), prompts)):
        with tempfile.TemporaryDirectory() as folder, ExitStack() as until_done:
            if kind == "evenload":
                llm = evenload.LLM(folder, engine=SlowEngine, batch=1, devices=f"cpu*{n}")
                until_done.callback(llm.close)
                llm.generate(["x"] * 4 * n)
                taken = min(timed(llm.generate, given) for _ in range(3 if n == 2 else 1))
            else:
                texts, taken = plain_loop(folder, given, n)
                assert texts == given
        found |= {"task, us": taken / N_TASKS * 1e6, "8 MB, MB/s": None} if n == 2 else {}
    return {**found, "300 on 1:2:4:8": bound_s(real) / taken}


PARTS: dict[str, tuple[str, Callable[[], dict]]] = {
    "joblib, evenload": ("evenload.joblib", lambda: measure_map(functools.partial(joblib_of, "evenload"))),
    "joblib, loky": ("joblib", lambda: measure_map(functools.partial(joblib_of, "loky"))),
    "evenload.futures": ("evenload.futures", lambda: measure_map(functools.partial(futures_of, "evenload"))),
    "concurrent.futures": ("joblib", lambda: measure_map(functools.partial(futures_of, "processes"))),
    "evenload.datasets.map": ("datasets", lambda: measure_datasets("evenload")),
    "datasets, num_proc": ("datasets", lambda: measure_datasets("num_proc")),
    "evenload.LLM": ("evenload.LLM", lambda: measure_generation("evenload")),
    "a loop over engines": ("evenload.LLM", lambda: measure_generation("loop")),
}
"""By name: the module that it needs, and what measures it."""


def is_there(module: str) -> bool:
    return module == "evenload.LLM" or importlib.util.find_spec(module) is not None


def measure(name: str) -> dict[str, Any]:
    os.environ["EVENLOAD_WARM_START"] = "0"
    return PARTS[name][1]()


def main() -> None:
    given = asked(__doc__ or "", measure, only="")
    from record import print_table, record

    everything = [name for name, (module, _) in PARTS.items() if is_there(module)]
    found = []
    for name in given.only.split(";") if given.only else everything:
        found.append({"line": name, **in_fresh_interpreter(name, script=__file__)})
        print_table(found[-1:])
    if given.only:
        return
    from importlib.metadata import version

    packages = {
        name: version(name) for name in ("joblib", "loky", "datasets") if importlib.util.find_spec(name)
    }
    record("integrations", found, packages=packages)


if __name__ == "__main__":
    main()
