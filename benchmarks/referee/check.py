"""Check what the referee wrote down of runs: who did what when, and how close to the best possible that was.

    python benchmarks/referee/check.py FILE...        (JSON lines, a run in each; may end in .gz)

It stands alone: Python's standard library, and no line of evenload or of the program that made the runs. The
records are the tasks' own, in nanoseconds of the machine's monotonic clock since the caller's call. A run is
refused if they contradict one another: an item that ends before it begins or outside of the call, two at once
on a device, one done in less time than its device needs, a result that nobody made. What a rival could not do
is no contradiction: items that were lost, or done twice, are counted. docs/explanation/referee.md says more.
"""

import argparse
import gzip
import itertools
import json
import math
import sys
from collections.abc import Sequence
from typing import Any

Rates = Sequence[Sequence[float]]  # [since when in seconds, units of cost a second], ascending; 0: it is dead
NEAR = 1e-6  # of a cost: what rounding to nanoseconds may take off


class Refused(ValueError):
    """Records that contradict one another: where, and why."""


def need(is_so: bool, why: str) -> None:
    if not is_so:
        raise Refused(why)


def work_between(rates: Rates, start_s: float, stop_s: float) -> float:
    """Units of cost that a device does from one time to another, also before 0."""
    turns = [-math.inf, *(since for since, _ in rates[1:]), math.inf]
    spans = (
        (max(since, start_s), min(end, stop_s), speed)
        for (since, end), (_, speed) in zip(itertools.pairwise(turns), rates, strict=True)
    )
    return sum(speed * (stop - start) for start, stop, speed in spans if stop > start)


def soonest(devices: Sequence[Rates], cost: float) -> float:
    """Seconds until ``cost`` can be done by devices that all begin at 0 and share it at will."""
    times = sorted({since for rates in devices for since, _ in rates} | {0.0})
    for since, end in itertools.pairwise([*times, math.inf]):
        speed = sum(work_between(rates, since, since + 1e-3) for rates in devices) * 1e3
        if speed * (end - since) >= cost and speed > 0:
            return since + cost / speed
        cost -= speed * (end - since) if speed else 0.0
    return math.inf


def bound_s(devices: Sequence[Rates], costs: Sequence[float]) -> float:
    """The least seconds for all the work on all devices at once, and for the longest item on any one."""
    return max(soonest(devices, sum(costs)), min(soonest([rates], max(costs)) for rates in devices))


def judge(page: dict[str, Any]) -> dict[str, Any]:
    """What a run came to. Raises Refused if its records contradict one another."""
    costs, devices, ended = page["costs"], page["devices"], page["ended"]
    need(bool(costs) and all(0 < cost < math.inf for cost in costs), "costs: not all are above 0")
    need(page["format"] == "evenload-referee 1", "it is not evenload-referee 1")
    done: dict[int, list[list[int]]] = {}
    for number, device, start, stop, cpu in page["attempts"]:
        where = f"item {number} on device {device} from {start}"
        need(0 <= number < len(costs) and 0 <= device < len(devices), f"{where}: there is no such one")
        need(start >= 0, f"{where}: before the call")
        if stop is not None:
            need(stop > start, f"{where}: it ends at {stop}, before it begins")
            check_time(page, number, device, start, stop, cpu, where)
            done.setdefault(number, []).append([start, stop, device, cpu])
    first = min((row[2] for row in page["attempts"]), default=page["epoch"])
    is_on_time = devices[0] is None or abs(page["epoch"] - first) <= 1e9
    need(is_on_time, "epoch: the devices' clock does not begin with the first item")
    check_turns(page["attempts"])
    delivered = page["delivered"]
    need(len(set(delivered)) == len(delivered), "delivered: an item twice")
    firsts = {number: min(rows, key=lambda row: row[1]) for number, rows in done.items()}
    unmade = [number for number in delivered if number not in firsts or firsts[number][1] > ended]
    need(not unmade, f"delivered, but not done by then: {unmade[:9]}")
    return verdict(page, firsts, sum(map(len, done.values())) - len(done))


def check_time(page: Any, number: int, device: int, start: int, stop: int, cpu: int, where: str) -> None:
    """A modelled device needs its time, a real one the processor's."""
    rates, since = page["devices"][device], page["epoch"]
    if rates is None:
        need(0 < cpu <= stop - start + 1_000_000, f"{where}: {cpu} ns of a processor in less time")
        return
    did = work_between(rates, (start - since) / 1e9, (stop - since) / 1e9)
    need(did >= page["costs"][number] * (1 - NEAR), f"{where}: {did:.6f} of its cost done by {stop}")


def check_turns(attempts: Sequence[Sequence[Any]]) -> None:
    """Nothing begins on a device while it is at work."""
    last: dict[int, tuple[int, int]] = {}
    for number, device, start, stop, _ in sorted(attempts, key=lambda row: row[2]):
        other, until = last.get(device, (0, 0))
        need(start >= until, f"items {other} and {number} at once on device {device} at {start}")
        if stop is not None:
            last[device] = number, stop


def verdict(page: dict[str, Any], firsts: dict[int, list[int]], n_again: int) -> dict[str, Any]:
    """Of the first time that each item was done: how long all took, beside the bound."""
    costs, devices, n_done = page["costs"], page["devices"], len(page["delivered"])
    counts = {
        "lost": len(costs) - n_done, "again": n_again, "cut": sum(row[3] is None for row in page["attempts"]),
        "ended_itself": page["ended_itself"], "said": page["said"],
    }  # fmt: skip
    if counts["lost"] or not page["ended_itself"]:
        return {"ratio": None, **counts}
    spent = own = sum(stop - start for start, stop, *_ in firsts.values()) / 1e9
    if devices[0] is None:
        devices, costs = [[[0.0, 1.0]]] * len(devices), [cpu / 1e9 for *_, cpu in firsts.values()]
    else:
        own = sum(least_s(page, number, start, d) for number, (start, _, d, _) in firsts.items())
    began, last = min(row[2] for row in page["attempts"]), max(stop for _, stop, *_ in firsts.values())
    least, took = bound_s(devices, costs), (last - began) / 1e9
    need(took >= least * (1 - NEAR), f"all done in {took} s, which nobody can below {least} s")
    return {
        "ratio": least / took, "bound_s": least, "makespan_s": took, "start_s": began / 1e9,
        "handed_s": (page["ended"] - last) / 1e9, "late": spent / own - 1, **counts,
    }  # fmt: skip


def least_s(page: dict[str, Any], number: int, start: int, device: int) -> float:
    """Seconds that an item takes its device from ``start`` on."""
    at = (start - page["epoch"]) / 1e9
    rates = [[max(0.0, since - max(at, 0.0)), speed] for since, speed in page["devices"][device]]
    begun = max(i for i, (since, _) in enumerate(rates) if since == 0)
    return soonest([rates[begun:]], page["costs"][number])


def runs_of(path: str) -> list[dict[str, Any]]:
    """The runs that a file holds."""
    with (
        gzip.open(path, "rt", encoding="utf-8")
        if path.endswith(".gz")
        else open(path, encoding="utf-8") as file
    ):
        return [json.loads(line) for line in file]


def main(paths: Sequence[str]) -> int:
    n_refused = 0
    for page in itertools.chain.from_iterable(map(runs_of, paths)):
        name = f"{page['case']}, {page['rival']}"
        try:
            found = judge(page)
        except (Refused, ArithmeticError, LookupError, TypeError, ValueError) as error:
            n_refused += 1
            print(f"REFUSED  {name}: {error!r:.200}")
            continue
        said = f"{found['ratio']:.3f} of the best" if found["ratio"] else f"lost {found['lost']}"
        said += "" if found["ended_itself"] else ", never returned"
        print(f"{said:22}  {name}; done again {found['again']}, cut short {found['cut']}  {found['said']}")
    return 1 if n_refused else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("files", nargs="+", metavar="FILE", help="JSON lines, a run in each; may end in .gz")
    sys.exit(main(parser.parse_args().files))
