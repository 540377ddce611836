"""What an executor costs: seconds to the first result, and microseconds per task that does nothing.

    python benchmarks/executor_overhead.py [--peers "evenload;loky"] [--rounds 5]

Two workers. "start" is import + start + first result, in an interpreter of its own. "one by one" and
"default" map 10 000 items with a function that returns its argument, workers warm, results in input order,
best of the rounds: wall and CPU (of all processes) per item. "One by one" each item is
dealt on its own; evenload lets what takes less than half a millisecond travel together all the same, and the
row "a message per item" shows what it costs where it must not. "default" is what the library's first example
does; for multiprocessing.Pool and mpire that returns a list at the end, for the others results are streamed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evenload.cli.bench.measure.peers import Peer

# Spawned workers of the peers import this file: it imports evenload only where it needs it.

HERE = Path(__file__).parent
N = 10_000
N_WORKERS = 2
MOST_WARM_UPS = 20


def measure_start(peer_name: str) -> dict[str, float]:
    from bench_tasks import same
    from cpu_clock import process_tree_cpu_s

    everybody = contenders()
    began, cpu = time.perf_counter(), process_tree_cpu_s()
    peer = everybody[peer_name]()
    peer.start(N_WORKERS)
    assert next(peer.imap(same, [7], 1)) == 7
    first_s, cpu_s = time.perf_counter() - began, process_tree_cpu_s() - cpu
    began = time.perf_counter()
    peer.close()
    return {"start_s": first_s, "start_cpu_s": cpu_s, "close_s": time.perf_counter() - began}


def all_up(run: Callable[..., object], n_workers: int) -> str:
    """Run items until all workers have claimed a slot of the folder that is returned, or those that get any:
    Ray Data may give all to one.
    """
    from bench_tasks import warm_up

    folder = tempfile.mkdtemp(prefix="slots")
    for _ in range(MOST_WARM_UPS):
        if len(os.listdir(folder)) >= n_workers:
            break
        run(warm_up, [(folder, 0.15)] * 2 * n_workers)
    return folder


def started(peer: "Peer") -> "Peer":
    """``peer`` with all its workers up."""
    peer.start(N_WORKERS)
    all_up(lambda fn, items: list(peer.imap(fn, items, 1)), N_WORKERS)
    return peer


def measure_tasks(peer_name: str, mode: str, n_rounds: int) -> dict[str, float]:
    from bench_tasks import same
    from cpu_clock import process_tree_cpu_s

    from evenload.cli.bench.measure.timing import least_time

    peer, chunk = started(contenders()[peer_name]()), 1 if mode == "one by one" else None
    n = min(n_rounds, peer.most_rounds)
    best = least_time(
        lambda: list(peer.imap(same, range(N), chunk)), n, cpu_clock=process_tree_cpu_s, warms_up=False
    )
    assert best.result == list(range(N))
    peer.close()
    return {f"{mode}_us": best.wall_s / N * 1e6, f"{mode}_cpu_us": best.cpu_s / N * 1e6}


def in_fresh_interpreter(*one: object, script: str = __file__, limit_s: float = 600.0) -> Any:
    """What ``script --one`` prints last for these arguments. Raises RuntimeError if it fails."""
    path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    env["PATH"] = os.pathsep.join((os.path.dirname(sys.executable), env.get("PATH", "")))  # Parsl's programs
    done = subprocess.run(
        [sys.executable, script, "--one", json.dumps(one)],
        env=env,
        capture_output=True,
        text=True,
        timeout=limit_s,
    )
    if done.returncode:
        raise RuntimeError(f"{one}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def asked(about: str, measure: Callable[..., Any], **more: Any) -> argparse.Namespace:
    """The options of a program: those of ``more``, each with its default.

    With --one it is an interpreter of its own in which one row is measured: that is printed, and it ends.
    """
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    for name, default in more.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"default: {default!r}")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(*json.loads(given.one))), flush=True)
        os._exit(0)
    return given


def told(name: str, rows: list[dict], is_whole: bool, **facts: Any) -> None:
    """Write the result, or only print what is a part of it."""
    from peers import versions
    from record import print_table, record

    if is_whole:
        record(name, rows, peers=versions(), load_average=os.getloadavg()[0], **facts)
    else:
        print_table(rows)


def contenders() -> dict[str, type]:
    from peers import EvenloadAlone, all_peers

    everybody = all_peers()
    return {"evenload": everybody.pop("evenload"), EvenloadAlone.name: EvenloadAlone, **everybody}


def row_of(name: str, n_rounds: int) -> dict[str, float | str | None]:
    peer = contenders()[name]
    n_rounds = min(n_rounds, peer.most_rounds)
    starts = [in_fresh_interpreter("start", name) for _ in range(n_rounds)]
    row: dict[str, float | str | None] = {"peer": name}
    row |= {key: min(start[key] for start in starts) for key in starts[0]}
    for mode, is_there in (("one by one", peer.has_one_by_one), ("default", peer.has_own_default)):
        empty = {f"{mode}_us": None, f"{mode}_cpu_us": None}
        row |= in_fresh_interpreter("bench_tasks", name, mode, n_rounds) if is_there else empty
    return row


def measure(kind: str, *arguments: Any) -> dict[str, float]:
    return (measure_start if kind == "start" else measure_tasks)(*arguments)


def main() -> None:
    given = asked(__doc__ or "", measure, peers="", rounds=5)
    names = given.peers.split(";") if given.peers else contenders()
    told("executor_overhead", [row_of(name, given.rounds) for name in names], not given.peers)


if __name__ == "__main__":
    main()
