"""The same work through other schedulers and ours: who comes how close to the best, and who gets through.

    python benchmarks/referee/replay.py [--rivals pool,dask_futures] [--works prompts] [--rounds 3] [--real]
                                        [--keep FILE]

A case is a work (works/*.jsonl, or costs by a seed), a fleet of devices, and what goes wrong. Each rival is
one file of rivals/ with ``workers(n, limit_s)``, a context whose value runs ``task(device, item)`` for each
item on one of n devices and gives the numbers of items that are done. To mend a rival, mend its file: its
figures follow. Every run has an interpreter of its own, and its workers are up before it begins where they
can be. What is written is the tasks' own record; check.py, which knows none of this, makes the figures of it.
"""

import argparse
import gzip
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import bench_tasks as tasks  # noqa: E402
import check  # noqa: E402
import device  # noqa: E402
from result_files import RESULTS  # noqa: E402

RIVALS = sorted(path.stem for path in (HERE / "rivals").glob("*.py"))
WORK = 300.0  # units of cost in all: a second each on a modelled device of speed 1
REAL_WORK = 800.0
BEST = WORK / 15  # seconds that all work takes at speeds 1 : 2 : 4 : 8
FLEETS: dict[str, list[Any]] = {
    "1 : 2 : 4 : 8": [[[0, 1]], [[0, 2]], [[0, 4]], [[0, 8]]],
    "1 : 2 : 4 : 8, the fastest slows to half": [[[0, 1]], [[0, 2]], [[0, 4]], [[0, 8], [BEST / 2, 4]]],
    "1 : 2 : 4 : 8, the second dies": [[[0, 1]], [[0, 2], [BEST / 3, 0]], [[0, 4]], [[0, 8]]],
    "4 alike": [[[0, 3.75]]] * 4,
    "2 cores": [None, None],
}
START_S, LEAST_S, SLOWER = 300.0, 20.0, 6.0  # a run may take to begin; to end, and how often its bound
TAG = "REFEREE_RUN"


@dataclass(frozen=True)
class Case:
    """A work on a fleet, and what goes wrong at one of its items.

    limit_s  the time limit of an item, for whoever has one; only given where an item hangs
    """

    work: str
    fleet: str
    fault: str = ""
    costs: Sequence[float] = ()
    sizes: Sequence[int] = ()
    faults: dict[int, str] = field(default_factory=dict)
    limit_s: float | None = None

    @property
    def name(self) -> str:
        return ", ".join(filter(None, (f"{self.work} on {self.fleet}", self.fault)))


def case(work: str, fleet: str, fault: str = "", total: float = WORK) -> Case:
    """A case of a recorded work, or of one by a seed, scaled to ``total`` units.

    The first line of a record says where it is from. Each other one is an item: its cost in any unit, the
    bytes sent with it and, where it has one, its fault: "raises", "kills its worker" or "hangs", once.
    """
    path = HERE / "works" / f"{work}.jsonl"
    if path.exists():
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[1:]]
        costs, sizes = [line["cost"] for line in lines], [line["bytes"] for line in lines]
        faults = {line["item"]: line["fault"] for line in lines if line.get("fault")}
    else:
        n, shape = work.split()
        costs, sizes, faults = tasks.costs(int(n), total, sigma=shape == "lognormal"), [0] * int(n), {}
    costs = [cost * total / sum(costs) for cost in costs]
    if fault:
        faults[len(costs) // 3] = fault
    limit_s = max(2.0, 1.25 * max(costs)) if fault == "hangs" else None
    return Case(work, fleet, fault, costs, sizes, faults, limit_s)


def cases(is_real: bool) -> list[Case]:
    if is_real:
        return [case(work, "2 cores", total=REAL_WORK) for work in ("prompts", "60 lognormal")]
    *unequal, alike, _ = FLEETS
    few, faults = "60 lognormal", ("raises", "kills its worker", "hangs")
    return [
        case("prompts", unequal[0], total=2 * WORK),  # many short items, which a busy machine would blur
        case("experts", unequal[0]),
        *(case(few, fleet) for fleet in unequal),
        *(case(few, unequal[0], fault) for fault in faults),
        case("120 equal", alike),
    ]


# --- a run, seen from outside ------------------------------------------------------------------------


def run(given: Case, rival: str) -> dict[str, Any]:
    """What a run of ``rival`` left on record, as check.py reads it."""
    devices = FLEETS.get(given.fleet) or json.loads(given.fleet)
    with tempfile.TemporaryDirectory(prefix="referee") as folder:
        for part, costs in (("run", given.costs), ("warm", [0.1] * 2 * len(devices))):
            made = Path(folder) / part
            made.mkdir()
            rates = devices if part == "run" else [[[0, 1]]] * len(devices)
            world = {"costs": costs, "devices": rates, "faults": given.faults if part == "run" else {}}
            (made / "world.json").write_text(json.dumps(world))
        path = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        own = {"REFEREE_FOLDER": folder, "REFEREE_DEVICES": str(len(devices)), TAG: folder}
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path)}
        asked = json.dumps([rival, folder, list(given.sizes), len(devices), given.limit_s])
        with open(Path(folder) / "talk", "wb") as talk:
            child = subprocess.Popen(
                [sys.executable, __file__, "--one", asked], env={**os.environ, **own, **threads},
                stdout=talk, stderr=talk, start_new_session=True,
            )  # fmt: skip
            is_real = devices[0] is None
            wait(child, Path(folder), START_S if is_real else SLOWER * check.bound_s(devices, given.costs))
        stopped = time.monotonic_ns()
        end_all(folder, child)
        if os.environ.get("REFEREE_TALK"):
            print((Path(folder) / "talk").read_text(errors="replace")[-4000:], file=sys.stderr)
        return record_of(given, rival, devices, Path(folder), stopped)


def wait(child: subprocess.Popen, folder: Path, limit_s: float) -> None:
    """Wait for the end of a run, which may take so long once an item of it has begun."""
    until, has_begun = time.monotonic() + START_S, False
    while child.poll() is None and time.monotonic() < until:
        if not has_begun and any((folder / "run").glob("records-*")):
            has_begun, until = True, time.monotonic() + max(LEAST_S, limit_s)
        time.sleep(0.1)


def end_all(tag: str, child: subprocess.Popen) -> None:
    """End what a run has left: whoever has its tag."""
    import psutil

    child.kill()  # first, as a pool replaces workers that are gone
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(TAG) == tag:
                process.kill()
    child.wait()


def record_of(given: Case, rival: str, devices: list[Any], folder: Path, stopped: int) -> dict[str, Any]:
    part = folder / "run"
    began = int(text_of(part / "began") or stopped)
    unsaid = "" if (part / "began").exists() else "did not begin: " + text_of(folder / "talk").strip()[-150:]
    ended, said = (text_of(part / "ended") or f"{stopped}\n{unsaid}").split("\n", 1)
    attempts: dict[tuple[int, ...], list[Any]] = {}
    for path in part.glob("records-*"):
        for row in map(json.loads, path.read_text().splitlines()):
            key = (row[0], row[1], row[2])
            attempts[key] = [
                row[0],
                row[1],
                row[2] - began,
                *([row[3] - began, row[4]] if row[3:] else [None, 0]),
            ]
    module = importlib.import_module(f"rivals.{rival}")
    return {
        "format": "evenload-referee 1", "case": given.name, "rival": module.NAME,
        "version": metadata.version(module.PACKAGE) if module.PACKAGE else sys.version.split()[0],
        "costs": [round(cost, 9) for cost in given.costs], "devices": devices,
        "epoch": int(text_of(part / "epoch") or began) - began, "ended": int(ended) - began,
        "ended_itself": (part / "ended").exists(), "said": said[:200],
        "delivered": [int(line) for line in text_of(part / "delivered").split()],
        "attempts": sorted(attempts.values(), key=lambda row: row[2]),
    }  # fmt: skip


def lines_of(folder: Path) -> list[str]:
    """What the tasks wrote down, in any order."""
    return [line for path in folder.glob("records-*") for line in path.read_text().splitlines()]


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


# --- a run, from inside ------------------------------------------------------------------------------


def play(rival: str, folder: str, sizes: list[int], n: int, limit_s: float | None) -> None:
    """Run all items by a rival, and write down what the caller got, and when."""
    module, part = importlib.import_module(f"rivals.{rival}"), Path(folder) / "run"
    items = [{"item": number, "payload": bytes(size)} for number, size in enumerate(sizes)]
    with module.workers(n, limit_s) as replay:
        if module.KEEPS_WORKERS:
            warm_up(replay, os.path.join(folder, "warm"), n)
        said = ""
        with open(part / "delivered", "w", buffering=1) as delivered:
            (part / "began").write_text(str(time.monotonic_ns()))
            try:
                for number in replay(device.Task(str(part)), items):
                    delivered.write(f"{number}\n")
            except Exception as error:
                said = f"{type(error).__name__}: {error}".replace("\n", " ")
        own = part / "ending"
        own.write_text(f"{time.monotonic_ns()}\n{said}")
        own.rename(part / "ended")


def warm_up(replay: Any, folder: str, n: int) -> None:
    """Have every worker run something, so that starting it is no part of the run."""
    for _ in range(20):
        list(replay(device.Task(folder), [{"item": number, "payload": b""} for number in range(2 * n)]))
        rows = [json.loads(line) for line in lines_of(Path(folder))]
        if len({row[1] for row in rows}) == n:
            return


# --- all of them --------------------------------------------------------------------------------------


def rows_of(pages: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A row for each case, with a figure or a word for each rival: the median of its runs."""
    for name in dict.fromkeys(page["case"] for page in pages):
        row: dict[str, Any] = {"case": name}
        for rival in sorted({page["rival"] for page in pages}):
            mine = [page for page in pages if (page["case"], page["rival"]) == (name, rival)]
            found = [check.judge(page) for page in mine]
            ratios = [one["ratio"] for one in found if one["ratio"]]
            is_whole = len(ratios) == len(found)
            row[rival] = statistics.median(ratios) if is_whole else word(found, len(mine[0]["costs"]))
            row[f"{rival} again"] = max(one["again"] for one in found)
        yield row


def word(found: Sequence[dict[str, Any]], n_items: int) -> str:
    """What became of the worst of a few runs: nothing that depends on how fast they were."""
    worst = max(found, key=lambda one: (not one["ended_itself"], one["lost"]))
    kinds = {0: "ok" if worst["ended_itself"] else "all done", 1: "loses it", n_items: "loses all"}
    return kinds.get(worst["lost"], "loses others, too") + (
        "" if worst["ended_itself"] else "; never returns"
    )


def outcomes_of(pages: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """A row for each case that some rival did not get through, those first that we did not."""
    rows: dict[str, dict[str, str]] = {}
    for page in pages:
        row = rows.setdefault(page["case"], {"case": page["case"]})
        mine = [one for one in pages if (one["case"], one["rival"]) == (page["case"], page["rival"])]
        row[page["rival"]] = word([check.judge(one) for one in mine], len(page["costs"]))
    broken = [row for row in rows.values() if {*row.values()} - {row["case"], "ok"}]
    return sorted(broken, key=lambda row: row.get("evenload") == "ok")


def run_all(pairs: list[tuple[Case, str]], keep: Path, at_once: int) -> None:
    """Run each pair that has no record in ``keep`` yet; a run's record is written there when it ends."""
    keep.touch()
    had = Counter((page["case"], page["rival"]) for page in check.runs_of(str(keep)))
    due = []
    for one, rival in pairs:
        key = one.name, importlib.import_module(f"rivals.{rival}").NAME
        if had[key]:
            had[key] -= 1
        else:
            due.append((one, rival))
    side_by_side = ThreadPoolExecutor(at_once)
    try:
        for kept in as_completed([side_by_side.submit(run_once, *pair, keep) for pair in due]):
            kept.result()
    finally:
        side_by_side.shutdown(cancel_futures=True)


def run_once(given: Case, rival: str, keep: Path) -> None:
    page = run(given, rival)
    with keep.open("ab", buffering=0) as file:
        file.write(json.dumps(page, separators=(",", ":")).encode() + b"\n")
    told = {"case": page["case"], "rival": page["rival"], **check.judge(page)}
    print(json.dumps(told), file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rivals", default=",".join(RIVALS), help="files of rivals/, separated by commas")
    parser.add_argument("--works", default="", help="only these, separated by commas")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=1, help="runs side by side")
    parser.add_argument(
        "--real", action="store_true", help="on this machine's cores, not on modelled devices"
    )
    parser.add_argument("--keep", type=Path, help="records as they come; runs that it holds are not repeated")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        play(*json.loads(given.one))
        sys.stdout.flush()
        os._exit(0)
    from record import print_table, record

    chosen = [importlib.import_module(f"rivals.{name}") for name in given.rivals.split(",")]
    names = [one.__name__.split(".")[1] for one in chosen if not one.PACKAGE or find_spec(one.PACKAGE)]
    asked = [one for one in cases(given.real) if not given.works or one.work in given.works.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        keep = given.keep or Path(folder) / "runs.jsonl"
        # Rivals of a case in turn, so that what else runs disturbs all alike.
        run_all([(one, name) for one in asked * given.rounds for name in names], keep, given.at_once)
        pages = check.runs_of(str(keep))
    order = [one.name for one in asked]
    pages.sort(key=lambda page: (order.index(page["case"]), page["rival"]))
    rows = list(rows_of(pages))
    if given.works or given.rivals != parser.get_default("rivals"):
        return print_table(rows)
    result = "referee_real" if given.real else "referee"
    facts = {"rivals": {page["rival"]: page["version"] for page in pages}, "at_once": given.at_once}
    record(result, rows, rounds=given.rounds, **facts)
    if not given.real:
        record("referee_outcomes", outcomes_of(pages), is_of_speed=False, **facts)
    with gzip.open(RESULTS / f"{result}.runs.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(page, separators=(",", ":")) + "\n" for page in pages)


if __name__ == "__main__":
    main()
