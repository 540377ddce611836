"""How close to the bound do executors come on four devices of speeds 1 : 2 : 4 : 8?

    python benchmarks/unequal_devices.py [--draws 5] [--peers evenload,loky] [--columns s60,d300]
        [--at-once 7] [--first-modes] [--name FILE]

The devices are processes that sleep for cost / speed, so the machine may be slow or busy; what is measured is
who gets what, when. On a busy machine give it a negative nice value: it needs little CPU, but promptly.
Columns: s steady, d the fastest device slows down 4x half way; 60 and 300 items of
lognormal cost (sigma 1), 3000 equal ones. A figure is the mean over draws of bound / makespan: 1.0 is what
nobody can beat. Nobody is told the speeds. Every peer runs in an interpreter of its own.
"""

import argparse
import functools
import json
import os
import random
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from executor_overhead import in_fresh_interpreter

SPEEDS = (1.0, 2.0, 4.0, 8.0)
WORK = 60.0  # seconds on a device of speed 1
DRIFT = 4.0
COLUMNS = {
    f"{kind}{n}": (n, kind == "d", "equal" if n == 3000 else "lognormal")
    for kind in "sd"
    for n in (60, 300, 3000)
}
PAUSE_S = 1.0  # between draws: a copy that came second may still run
LIMIT_S = 900


def costs(n: int, shape: str, draw: int) -> list[float]:
    rng = random.Random(draw)
    raw = [1.0 if shape == "equal" else rng.lognormvariate(0.0, 1.0) for _ in range(n)]
    scale = WORK / sum(raw)
    return [cost * scale for cost in raw]


def bound_s(has_drift: bool, longest: float) -> float:
    """Least time for all the work on all devices at once, and for the longest item on the fastest."""
    at_once = WORK / sum(SPEEDS)
    if has_drift:
        at_once = at_once / 2 + (WORK / 2) / (sum(SPEEDS) - SPEEDS[-1] * (1 - 1 / DRIFT))
    return max(at_once, longest / SPEEDS[-1])


def measure(peer_name: str, mode: str, column: str, draws: int) -> list[float]:
    """bound / makespan of each draw."""
    from peers import PEERS
    from tasks import warm_up, work

    n, has_drift, shape = COLUMNS[column]
    chunk = 1 if mode == "one by one" else None
    peer = PEERS[peer_name]()
    peer.start(len(SPEEDS))
    folder = tempfile.mkdtemp(prefix="slots")
    while len(os.listdir(folder)) < len(SPEEDS):
        list(peer.imap(warm_up, [(folder, 0.15)] * 8, 1))
    ratios = []
    for draw in range(1, draws + 1):
        time.sleep(PAUSE_S)
        items = costs(n, shape, draw)
        began = time.time()
        drift_at = began + WORK / sum(SPEEDS) / 2 if has_drift else None
        fn = functools.partial(work, folder=folder, speeds=SPEEDS, drift_at=drift_at, drift=DRIFT, draw=draw)
        results = list(peer.imap(fn, items, chunk))
        assert len(results) == n
        ratios.append(bound_s(has_drift, max(items)) / (time.time() - began))
    peer.close()
    return ratios


def n_draws(column: str, draws: int) -> int:
    """With few items it is luck who gets the largest: these columns need more draws."""
    return draws * 3 if COLUMNS[column][0] < 100 else draws


def row_of(name: str, mode: str, columns: list[str], draws: int) -> dict:
    """Mean and worst ratio of every column."""
    row: dict = {"peer": name, "mode": mode}
    for column in columns:
        ratios = in_fresh_interpreter(
            name, mode, column, n_draws(column, draws), script=__file__, limit_s=LIMIT_S
        )
        row[column] = sum(ratios) / len(ratios)
        row[f"{column}_worst"] = min(ratios)
    return {key: row[key] for key in ("peer", "mode", *sorted(row.keys() - {"peer", "mode"}))}


def mean_of_peers(rows: list[dict]) -> list[dict]:
    """A row of means over the peers that take items one by one, if there are some."""
    others = [row for row in rows if row["mode"] == "one by one"]
    if not others:
        return []
    means = {key: sum(row[key] for row in others) / len(others) for key in others[0] if key[0] in "sd"}
    return [{"peer": "mean of the peers, one by one", "mode": "", **means}]


def main() -> None:
    given = arguments()
    if given.one:
        print(json.dumps(measure(*json.loads(given.one))), flush=True)
        os._exit(0)
    from peers import PEERS, versions
    from record import print_table, record

    names = given.peers.split(",") if given.peers else list(PEERS)
    columns = given.columns.split(",")
    jobs = []
    for name in names:
        jobs.append((name, "default" if name == "evenload" else "one by one"))
        if PEERS[name].has_own_default and name != "evenload" and not given.first_modes:
            jobs.append((name, "default"))

    def row_at(at: int) -> dict:
        turn = at % len(columns)  # side by side, not everybody measures the same column at the same time
        return row_of(*jobs[at], columns[turn:] + columns[:turn], given.draws)

    rows = []
    with ThreadPoolExecutor(given.at_once) as side_by_side:
        for row in side_by_side.map(row_at, range(len(jobs))):
            rows.append(row)
            print_table(rows[-1:])
    rows += mean_of_peers(rows)
    if (given.peers or columns != list(COLUMNS)) and not given.name:
        print_table(rows)
        return
    facts = {"peers": versions(), "load_average": os.getloadavg()[0], "at_once": given.at_once}
    draws = {column: n_draws(column, given.draws) for column in columns}
    record(given.name or "unequal_devices", rows, draws=draws, **facts)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--peers", default="")
    parser.add_argument("--columns", default=",".join(COLUMNS))
    parser.add_argument("--at-once", type=int, default=1, help="peers that are measured side by side")
    parser.add_argument("--first-modes", action="store_true", help="leave out the peers' own default idioms")
    parser.add_argument("--name", help="of the result file; a part of the table is only recorded with one")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
