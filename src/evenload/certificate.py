"""Check certificates: a schedule did what is claimed, and no other could have been much better.

    python check_certificate.py FILE... [--require SHARE]        or: python -m evenload.certificate FILE...

It stands alone: Python's standard library, whole numbers and exact fractions, and no other line of evenload.
What the fields mean, and what a certificate does not prove: docs/reference/certificates.md.
"""

import argparse
import heapq
import json
import math
import re
import sys
from bisect import bisect_right
from collections import Counter
from fractions import Fraction
from itertools import accumulate, chain, pairwise
from operator import index, le
from typing import Any

FORMAT, VERSION, MOST_BYTES, MOST_ENTRIES = "evenload-certificate", 1, 48_000_000, 2_500_000
MOST_LANES, MOST_PARTS, MOST_NEEDS = 4096, 16, 64
NUMBER = re.compile(r"[0-9]{1,18}(\.[0-9]{1,25})?(e[+-]?[0-9]{1,2})?")
ODD = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError)


class Refused(ValueError):
    """A certificate that does not prove its claim: where, and why."""


def need(is_so: Any, why: str) -> None:
    if not is_so:
        raise Refused(why)


def numbers(values: Any) -> list[Any]:
    """Return numbers as they are. Raises TypeError for a text or list, which times 10**9 fills the memory."""
    return [+one for one in values]


def load(path: Any) -> Any:
    """Read a file; as ``parse``. Raises OSError, too."""
    with open(path, "rb") as file:
        return parse(file.read(MOST_BYTES + 1))


def parse(content: bytes) -> Any:
    """Return what the JSON says, decimals as Fractions. Raises Refused for too much, or for other numbers."""

    def number(text: str) -> int | Fraction:
        need(NUMBER.fullmatch(text), f"the number {text[:18]} is below 0, too large or too long")
        return int(text) if text.isdigit() else Fraction(text)

    is_small = len(content) <= MOST_BYTES and sum(map(content.count, (b",", b"[", b"{"))) <= MOST_ENTRIES
    need(is_small, f"the file has more than {MOST_BYTES} bytes or {MOST_ENTRIES} entries")
    try:
        return json.loads(content.decode(), parse_int=number, parse_float=number, parse_constant=number)
    except Refused:
        raise
    except (ValueError, RecursionError) as error:
        raise Refused(f"the file is no JSON: {ascii(str(error))[:99]}") from None


def check(page: Any) -> tuple[Fraction, Fraction]:
    """Return what was achieved, and a bound of what anybody can achieve. Raises Refused."""
    try:
        need((page["format"], page["version"]) == (FORMAT, VERSION), f"it is not {FORMAT}, version {VERSION}")
        need(page["kind"] in CHECKS, f"kind: {ascii(page['kind'])[:60]} is none of {', '.join(CHECKS)}")
        achieved, bound, ratio = numbers(page["claim"][name] for name in ("achieved", "bound", "ratio"))
        how, option = CHECKS[page["kind"]]
        least, most = how(page["evidence"], option)
        need(achieved >= least, f"claim.achieved: {float(achieved)}, but it was {float(least)}")
        need(bound <= most, f"claim.bound: {float(bound)}, but the evidence proves {float(most)}")
        need(0 < bound <= achieved <= ratio * bound, "claim.ratio: it is not achieved over bound")
        return Fraction(achieved), Fraction(bound)
    except Refused:
        raise
    except ODD as error:
        raise Refused(f"it is damaged: {ascii(repr(error))[:99]}") from None


def check_times(run: Any, is_plan: bool) -> tuple[Any, Any]:
    """Check a run or a plan: chunks of items on devices, times in nanoseconds."""
    stages, lanes = run["stages"], [index(one["lanes"]) for one in run["devices"]]
    parts = [one["parts"] or [d] for d, one in enumerate(run["devices"])]  # of a group: its devices
    needs = [(stage, p) for stage in stages for p in stage["needs"]]
    is_small = 0 < min(lanes) <= sum(lanes) <= MOST_LANES and len(needs) <= MOST_NEEDS
    is_small = is_small and max(map(len, parts)) <= MOST_PARTS
    need(is_small, f"up to {MOST_LANES} lanes, groups of {MOST_PARTS}, and {MOST_NEEDS} needs are checked")
    need(all(parts[p] == [p] for p in chain(*parts)), "devices: a group in a group")
    rows: list[list[Any]] = [[] for _ in lanes]
    for stage in stages:
        check_stage(stage, lanes, parts, rows, is_plan)
    for d, some in enumerate(rows):
        keep_lanes(some, f"device {d}")
    members = sorted(chain(*(one["stages"] for one in run["stretches"])))
    need(members == [*range(len(stages))], "stretches: not each stage once")
    achieved = bound = last = 0
    for at, one in enumerate(run["stretches"]):
        some, prices = [stages[s] for s in one["stages"]], numbers(one["prices"])
        start, stop, least = numbers((one["start"], one["stop"], one["bound"]))
        times = [start, stop, *(t for stage in some for _, *span in stage["rows"] for t in span)]
        need(last <= start == min(times) and max(times) == stop, f"stretch {at}: a chunk is outside of it")
        if prices or is_plan:
            is_proved = by_prices(some, least, prices, lanes)
        else:
            is_proved = least and by_longest(some[0], least, index(one["longest"]), lanes)
        need((is_proved or least == 0) and (at == 0 or not is_plan), f"stretch {at}: its bound is not proved")
        achieved, bound, last = achieved + stop - start, bound + least, stop
    for stage, p in needs:
        starts, stops = (sorted(row[k] for row in one["chunks"]) for k, one in ((1, stage), (2, stages[p])))
        ends = (stops[-(-k * len(stops) // len(starts)) - 1] for k in range(1, len(starts) + 1))
        need(all(map(le, ends, starts)), f"stage {p}: what needs it begins too early")
    return achieved, bound


def check_stage(stage: Any, lanes: list[int], parts: Any, rows: list[list[Any]], is_plan: bool) -> None:
    """Check the chunks and loads of a stage. Adds sums to the stage, and what devices did to their rows."""
    where, loads, loaded = f"stage {ascii(stage['name'])[:60]}", numbers(stage["load"]), {}
    rate = {d: +speed for d, speed in enumerate(stage["speeds"]) if speed is not None}
    is_so = all(rate.values()) and max(rate, default=0) < len(lanes) == len(loads)
    need(is_so and (is_plan or not any(loads)), f"{where}: odd speeds or loads")
    for d, start, stop in sorted(map(numbers, stage["loads"])):
        need(stop - start >= max(loads[p] for p in parts[d]), f"{where}: too short a load from {start}")
        loaded.setdefault(d, stop)
    samples, busy, done = [[] for _ in lanes], [0] * len(lanes), []
    for *row, items, again, cost, is_good in stage["chunks"]:
        (d, start, stop, busy_ns), n = numbers(row), sum(map(index, items[1::2]))
        n_all = n + index(again)
        is_so = start + busy_ns <= stop and n_all and cost != 0
        if is_plan:
            is_ready = loaded.get(d, stop) <= start or not any(loads[p] for p in parts[d])
            is_so = is_so and is_ready and n_all == 1
            is_so = is_so and busy_ns * sum(rate[p] for p in {*parts[d]}) >= lanes[d] * 10**9
        need(is_so, f"{where}: nothing done, no time for it, or not loaded, from {start}")
        done += [(index(first), first + k) for first, k in zip(items[::2], items[1::2], strict=True)]
        samples[d] += [(float(busy_ns / (n_all if cost is None else +cost)) / 1e9, n_all)] * bool(is_good)
        busy[d] += busy_ns * n // n_all
    done.sort()
    n_items = sum(end - first for first, end in done)
    is_so = all(a[1] <= b[0] for a, b in pairwise(done)) and n_items == stage["items"]
    need(is_so, f"{where}: it has {n_items} items, or some twice")
    for d, some in enumerate([] if is_plan else samples):
        is_so = abs(speed_of(some) / rate[d] - 1) < 1e-9 if some else d not in rate
        need(is_so, f"{where}: the speed of device {d} is not what its chunks say")
    work = n_items * 10**9 if is_plan else sum(busy[d] * speed for d, speed in rate.items())
    spans = [row[:3] for row in (*stage["loads"], *stage["chunks"])]
    stage |= {"rate": rate, "work": work, "load": loads, "rows": spans}
    for d, start, stop in spans:
        for p in parts[d]:
            rows[p].append((start, stop, d, lanes[d]))


def keep_lanes(rows: list[Any], where: str) -> None:
    """Of a device's ``(start, stop, who, lanes)`` no two are at once, but as many of one as it has lanes."""
    running: list[Any] = []
    for start, stop, who, lanes in sorted(rows):
        while running and running[0][0] <= start:
            heapq.heappop(running)
        is_free = len(running) < lanes and (not running or running[0][1] == who)
        need(is_free and start <= stop, f"{where}: too many at once from {start}")
        heapq.heappush(running, (stop, who))


def speed_of(samples: list[Any]) -> float:
    """Items a second over the middle half of ``(seconds of one, n items)``: the mean of their logarithms."""
    counts, logs, seen, total = Counter[int](), Counter[int](), 0, 0.0
    for log_s, n in ((math.log(max(seconds, 1e-9)), n) for seconds, n in samples):
        counts[math.floor(log_s * 50)] += n
        logs[math.floor(log_s * 50)] += n * log_s  # pyrefly: ignore
    quarter = sum(counts.values()) / 4
    for at, n in sorted(counts.items()):
        total += max(0.0, min(seen + n, 3 * quarter) - max(seen, quarter)) * logs[at] / n
        seen += n
    return math.exp(-total / (2 * quarter))


def by_prices(stages: list[Any], bound: Any, prices: list[Any], lanes: list[int]) -> bool:
    """Before the bound, devices earn less than the work is worth, whatever its prices: linear duality."""
    earned: list[Any] = [0] * len(lanes)
    for stage, price in zip(stages, prices, strict=True):
        for d, speed in stage["rate"].items():
            earned[d] = max(earned[d], lanes[d] * speed * price * (bound - stage["load"][d]))
    return sum(earned) <= sum(one["work"] * price for one, price in zip(stages, prices, strict=True)) > 0


def by_longest(stage: Any, bound: Any, n: int, lanes: list[int]) -> bool:
    """The n longest items are on n devices at most, the fastest at best."""
    rate = stage["rate"]
    fast = sorted((speed for d, speed in rate.items() for _ in range(min(lanes[d], n))), reverse=True)[:n]
    chunks = ((row, sum(row[4][1::2])) for row in stage["chunks"] if row[0] in rate)
    sizes = ((row[3] * rate[row[0]] / (k + row[5]), k) for row, k in chunks)
    each = (math.floor(size / fast[0]) for size, k in sizes for _ in range(min(k, len(fast))))
    return bound * sum(fast) <= sum(heapq.nlargest(len(fast), each)) * fast[0]


def check_split(page: Any, proves: Any) -> tuple[Any, Any]:
    """Check routings or placements of layers: each expert's demand over the slots that hold it."""
    speeds, gpus, achieved, bound = numbers(page["speeds"]), page["slot2gpu"], Fraction(0), Fraction(0)
    speeds = [Fraction(speed) / max(speeds) for speed in speeds]
    for at, layer in enumerate(page["layers"]):
        layer |= {"demand": numbers(layer["demand"]), "peak": +layer["peak"]}
        left, loads, slots, peak = list(layer["demand"]), [0] * len(speeds), layer["phy2log"], layer["peak"]
        copies = Counter(slots)  # over which no quotas means an equal split
        for gpu, expert, quota in zip(gpus, slots, layer["quotas"] or [None] * len(slots), strict=True):
            if expert is not None:
                quota = Fraction(layer["demand"][expert]) / copies[expert] if quota is None else +quota
                left[expert] -= quota
                loads[gpu] += quota
        need({*range(len(left))} <= {*slots} and not any(left), f"layer {at}: an expert is not served")
        used = [(one, speed) for one, speed in zip(loads, speeds, strict=True) if one]
        need(all(speed for _, speed in used), f"layer {at}: load on a dead GPU")
        achieved += Fraction(math.ceil(max((one / speed for one, speed in used), default=0) * 10**9), 10**9)
        need(peak == 0 or proves(layer, peak, gpus, speeds), f"layer {at}: its peak is not proved")
        bound += peak
    return achieved, bound


def by_cut(layer: Any, peak: Any, gpus: list[int], speeds: list[Fraction]) -> bool:
    """The GPUs of the cut carry what no others can serve: more than they have room for below the peak."""
    slots, cut = zip(gpus, layer["phy2log"], strict=True), set(layer["cut"])
    elsewhere = {expert for gpu, expert in slots if gpu not in cut and speeds[gpu]}
    given = sum(index(n) for expert, n in enumerate(layer["demand"]) if expert not in elsewhere)
    return sum(max(0, math.ceil(peak * speeds[gpu]) - 1) for gpu in cut) < given


def by_copies(layer: Any, peak: Any, gpus: list[int], speeds: list[Fraction]) -> bool:
    """Below the peak all speed is too little, or experts need more copies than there are slots."""
    reach = list(accumulate(sorted(filter(None, speeds), reverse=True)))  # of the k fastest GPUs
    needed = sum(bisect_right(reach, Fraction(n) / peak) + 1 for n in layer["demand"])
    return peak * reach[-1] <= sum(layer["demand"]) or needed > sum(speeds[gpu] > 0 for gpu in gpus)


CHECKS: dict[str, Any] = {"run": (check_times, False), "plan": (check_times, True)}
CHECKS |= {"routing": (check_split, by_cut), "placement": (check_split, by_copies)}


def share(text: str) -> Fraction:
    if not re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,18}|/0{0,9}[1-9][0-9]{0,17})?", text):
        raise argparse.ArgumentTypeError(f"{ascii(text)[:60]} is no share; write one as 0.95 or 19/20")
    return Fraction(text)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check certificates of evenload. Exit code 1: one is false.")
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--require", type=share, default=0, metavar="SHARE", help="bound over achieved")
    given, code = parser.parse_args(arguments), 0
    for path in given.files:
        try:
            achieved, bound = check(load(path))
            text = f"holds: {100 * float(bound / achieved):.2f} % of the best possible"
            code |= bound < given.require * achieved
        except (Refused, OSError) as error:
            text, code = f"refused: {getattr(error, 'strerror', error)}", 1
        sys.stdout.write(f"{ascii(path)[1:-1]} {text}\n")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
