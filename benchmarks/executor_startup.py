"""How long a worker takes to start, and to be replaced, by fork server and by new interpreters.

    python benchmarks/executor_startup.py [--rounds 5]

In an interpreter of its own for each round: "first" is from the call of the constructor to the first result
of two workers, "replace" from the kill of a worker to the result of an item on its successor. "bare" runs a
function that needs nothing; "torch" one whose module uses torch. Best of the rounds, in milliseconds; those
of other executors stand in executor_overhead.
"""

import os
import signal
import time

from executor_overhead import asked, in_fresh_interpreter

SETTLE_S = 6.0  # for the fork server to import torch, beside other work


def measure(start: str, what: str) -> dict[str, float]:
    if what == "torch":
        from torch_task import torch_pid_of as fn
    else:
        from bench_tasks import pid_of as fn

    from evenload.executor import Executor

    began = time.perf_counter()
    executor = Executor("cpu*2", start=start, echo=False)
    executor.start()
    next(iter(executor.map(fn, [0])))
    first_s = time.perf_counter() - began
    executor.close()
    with Executor("cpu*1", start=start, echo=False) as executor:
        (pid,) = executor.map(fn, [0])
        time.sleep(SETTLE_S if what == "torch" else 0.5)
        taken = []
        for _ in range(3):
            os.kill(pid, signal.SIGKILL)
            began = time.perf_counter()
            (pid,) = executor.map(fn, [0])
            taken.append(time.perf_counter() - began)
            time.sleep(0.3)
    return {"first_ms": first_s * 1e3, "replace_ms": min(taken) * 1e3}


def main() -> None:
    given = asked(__doc__ or "", measure, rounds=5)
    from record import record

    rows = []
    for start in ("forkserver", "spawn"):
        row: dict[str, float | str] = {"start": start}
        for what in ("bare", "torch"):
            rounds = [in_fresh_interpreter(start, what, script=__file__) for _ in range(given.rounds)]
            row |= {f"{what}_{key}": min(one[key] for one in rounds) for key in rounds[0]}
        rows.append(row)
    record("executor_startup", rows, rounds=given.rounds, load_average=os.getloadavg()[0])


if __name__ == "__main__":
    main()
