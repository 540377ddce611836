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
from bisect import bisect_left, bisect_right
from collections import Counter
from fractions import Fraction
from itertools import accumulate, chain, pairwise
from operator import index, le
from typing import Any

FORMAT, VERSION, MOST_BYTES, MOST_ENTRIES = "evenload-certificate", 2, 48_000_000, 2_500_000
MOST_LANES, MOST_PARTS, MOST_NEEDS = 4096, 16, 64
Z, Z_ALIKE, FEW, BEYOND = 1.96, 3.29, 30, math.log(1e9)  # 19 in 20, 999 in 1000; nobody is faster by more
NEAR = 0.95  # times of the same items are alike to 5 %
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
        is_ours = page["format"] == FORMAT and page["version"] in (1, VERSION)
        need(is_ours, f"it is not {FORMAT}, version 1 or {VERSION}")
        need(page["kind"] in CHECKS, f"kind: {ascii(page['kind'])[:60]} is none of {', '.join(CHECKS)}")
        achieved, bound, ratio = numbers(page["claim"][name] for name in ("achieved", "bound", "ratio"))
        how, option = CHECKS[page["kind"]]
        option = "run 1" if option == "run" and page["version"] == 1 else option
        least, most = how(page["evidence"], option)
        need(achieved >= least, f"claim.achieved: {float(achieved)}, but it was {float(least)}")
        need(bound <= most, f"claim.bound: {float(bound)}, but the evidence proves {float(most)}")
        need(0 < bound <= achieved <= ratio * bound, "claim.ratio: it is not achieved over bound")
        return Fraction(achieved), Fraction(bound)
    except Refused:
        raise
    except ODD as error:
        raise Refused(f"it is damaged: {ascii(repr(error))[:99]}") from None


def check_times(run: Any, kind: str) -> tuple[Any, Any]:
    """Check a run or a plan: chunks of items on devices, times in nanoseconds."""
    stages, lanes, is_plan = run["stages"], [index(one["lanes"]) for one in run["devices"]], kind == "plan"
    parts = [one["parts"] or [d] for d, one in enumerate(run["devices"])]  # of a group: its devices
    needs = [(stage, p) for stage in stages for p in stage["needs"]]
    is_small = 0 < min(lanes) <= sum(lanes) <= MOST_LANES and len(needs) <= MOST_NEEDS
    is_small = is_small and max(map(len, parts)) <= MOST_PARTS
    need(is_small, f"up to {MOST_LANES} lanes, groups of {MOST_PARTS}, and {MOST_NEEDS} needs are checked")
    need(all(parts[p] == [p] for p in chain(*parts)), "devices: a group in a group")
    rows: list[list[Any]] = [[] for _ in lanes]
    for stage in stages:
        check_stage(stage, lanes, parts, rows, is_plan)
        if not is_plan:
            likes = [one.get("like") or d for d, one in enumerate(run["devices"])]
            likes = None if kind == "run 1" else likes
            check_speeds(stage, likes, f"stage {ascii(stage['name'])[:60]}")
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
        work = rate = 0
        if prices or is_plan:
            work, rate = by_prices(some, prices, lanes, least)
        elif least:
            n = min(index(one["longest"]), sum(lanes))
            work, rate = by_longest(long_items(some[0], n), some[0]["rate"], n, lanes, least)
        is_so = (0 < work >= rate * least or least == 0) and (at == 0 or not is_plan)
        need(is_so, f"stretch {at}: its bound is not proved")
        achieved, bound, last = achieved + stop - start, bound + least, stop
    for stage, p in needs:
        starts, stops = (sorted(row[k] for row in one["chunks"]) for k, one in ((1, stage), (2, stages[p])))
        ends = (stops[-(-k * len(stops) // len(starts)) - 1] for k in range(1, len(starts) + 1))
        need(all(map(le, ends, starts)), f"stage {p}: what needs it begins too early")
    return achieved, bound


def check_stage(stage: Any, lanes: list[int], parts: Any, rows: list[list[Any]], is_plan: bool) -> None:
    """Check the chunks and loads of a stage. Adds sums to the stage, and what devices did to their rows."""
    where, loads, loaded = f"stage {ascii(stage['name'])[:60]}", numbers(stage["load"]), {}
    told = {d: one for d, one in enumerate(stage["speeds"]) if one is not None}
    rate = {d: (d, *numbers(one if isinstance(one, list) else [one] * 3)) for d, one in told.items()}
    is_so = all(0 < low <= speed <= high for _, speed, low, high in rate.values())
    is_so = is_so and max(rate, default=0) < len(lanes) == len(loads)
    need(is_so and (is_plan or not any(loads)), f"{where}: odd speeds or loads")
    for d, start, stop in sorted(map(numbers, stage["loads"])):
        need(stop - start >= max(loads[p] for p in parts[d]), f"{where}: too short a load from {start}")
        loaded.setdefault(d, stop)
    busy, done = dict.fromkeys(range(len(lanes)), 0), []
    for *row, items, again, cost, _ in stage["chunks"]:
        (d, start, stop, busy_ns), n = numbers(row), sum(map(index, items[1::2]))
        n_all = n + index(again)
        is_so = start + busy_ns <= stop and n_all and cost != 0
        if is_plan:
            is_ready = loaded.get(d, stop) <= start or not any(loads[p] for p in parts[d])
            is_so = is_so and is_ready and n_all == 1
            is_so = is_so and busy_ns * sum(rate[p][1] for p in {*parts[d]}) >= lanes[d] * 10**9
        need(is_so, f"{where}: nothing done, no time for it, or not loaded, from {start}")
        done += [(index(first), first + k) for first, k in zip(items[::2], items[1::2], strict=True)]
        busy[d] += 0 if is_plan else busy_ns * n // n_all
    done.sort()
    n_items = sum(end - first for first, end in done)
    is_so = all(a[1] <= b[0] for a, b in pairwise(done)) and n_items == stage["items"]
    need(is_so, f"{where}: it has {n_items} items, or some twice")
    spans = [row[:3] for row in (*stage["loads"], *stage["chunks"])]
    fixed = n_items * 10**9 if is_plan else 0
    stage |= {"rate": rate, "busy": busy, "fixed": fixed, "load": loads, "rows": spans}
    for d, start, stop in spans:
        for p in parts[d]:
            rows[p].append((start, stop, d, lanes[d]))


def check_speeds(stage: Any, likes: Any, where: str) -> None:
    """Check that the speeds of a run's stage are what its chunks say. ``likes``: None before version 2."""
    samples: dict[int, Any] = {}
    good = [row for row in stage["chunks"] if row[7]]
    for d, _, _, busy, items, again, cost, _ in good:
        n = sum(items[1::2]) + again
        take_sample(samples.setdefault(d, {}), float(busy / (n if cost is None else +cost)) / 1e9, n)
    is_told = all(row[6] is not None for row in good)
    found = {d: (d, *[speed_of(some)] * 3) for d, some in samples.items()}
    if likes is not None:
        found = speeds_of(samples, dict(enumerate(likes)), is_told, map(numbers, stage.get("shared", ())))
    pairs = ((found[d][1:], one[1:]) for d, one in stage["rate"].items() if d in found)
    is_so = all(abs(a / b - 1) < 1e-9 for some in pairs for a, b in zip(*some, strict=True))
    is_so = is_so and samples.keys() <= stage["rate"].keys() <= found.keys()
    need(is_so, f"{where}: speeds are not what its chunks say")
    stage["rate"] = {d: (found[d][0], *one[1:]) for d, one in stage["rate"].items()}


def keep_lanes(rows: list[Any], where: str) -> None:
    """Refuse ``(start, stop, who, lanes)`` of a device that overlap, but for as many of one as its lanes."""
    running: list[Any] = []
    for start, stop, who, lanes in sorted(rows):
        while running and running[0][0] <= start:
            heapq.heappop(running)
        is_free = len(running) < lanes and (not running or running[0][1] == who)
        need(is_free and start <= stop, f"{where}: too many at once from {start}")
        heapq.heappush(running, (stop, who))


def take_sample(bins: Any, seconds: float, n: int) -> None:
    """Count a chunk of ``n`` items, each of ``seconds``, in a bin of 2 %: [items, sum of logs, chunks]."""
    log_s = math.log(max(seconds, 1e-9))
    row = bins.setdefault(math.floor(log_s * 50), [0, 0.0, 0])
    row[:] = row[0] + n, row[1] + n * log_s, row[2] + 1


def speed_of(bins: Any) -> float:
    """Items a second over the middle half of the items: the mean of their logarithms."""
    quarter, seen, total = sum(row[0] for row in bins.values()) / 4, 0, 0.0
    for _, (n, logs, _) in sorted(bins.items()):
        total += max(0.0, min(seen + n, 3 * quarter) - max(seen, quarter)) * logs / n
        seen += n
    return math.exp(-total / (2 * quarter))


def ratio_of(one: Any, other: Any, is_told: bool, z: float = Z) -> tuple[float, float]:
    """The range of ``other``'s speed over that of ``one``, as logarithms: Mann and Whitney's.

    Of a few chunks, whose sizes nobody told: that of means of so many items, or all that there is.
    """
    rows, others = (coarse(bins) for bins in (one, other))
    gaps = sorted((a - b, n * m) for a, n in rows for b, m in others)
    n, m = (sum(some) for some in ([k for _, k in rows], [k for _, k in others]))
    half, ends = z * math.sqrt(n * m * (n + m + 1) / 12), list(accumulate(k for _, k in gaps))
    if half < n * m / 2:
        low, high = bisect_right(ends, n * m / 2 - half), bisect_left(ends, n * m / 2 + half)
        return gaps[low][0], gaps[high][0]
    n, m = (sum(row[0] for row in bins.values()) for bins in (one, other))
    if is_told or min(n, m) < FEW:
        return (gaps[0][0], gaps[-1][0]) if is_told else (-BEYOND, BEYOND)
    middle, half = math.log(speed_of(other) / speed_of(one)), z * math.sqrt(1 / n + 1 / m)
    return middle - half, middle + half


def coarse(bins: Any) -> list[tuple[float, int]]:
    """Bins as ``(mean logarithm, chunks)``; neighbours are put together until there are 64 at most."""
    by = 1
    while len({at // by for at in bins}) > 64:
        by *= 2
    sums: dict[int, Any] = {}
    for at, row in sorted(bins.items()):
        sums[at // by] = [a + b for a, b in zip(sums.get(at // by, (0, 0.0, 0)), row, strict=True)]
    return [(logs / n, chunks) for n, logs, chunks in sums.values()]


def speeds_of(
    samples: Any, likes: Any, is_told: bool, shared: Any = ()
) -> dict[Any, tuple[Any, float, float, float]]:
    """What is known of each device's speed: ``(who, speed, low, high)``, beside the device with most chunks.

    Devices with one ``who`` are equally fast: they are alike by their sheets, and no chunks speak against it.
    So are those of ``likes`` that did nothing. ``shared``: ``(slow, fast, its time, the other's)`` with items
    that both had, which took the first at least that long.
    """
    size = {d: (sum(row[2] for row in bins.values()), speed_of(bins)) for d, bins in samples.items()}
    order, first, who = sorted(samples, key=lambda d: (*size[d], str(likes[d])), reverse=True), {}, {}
    for d in order:
        lead = first.setdefault(likes[d], d)
        low, high = ratio_of(samples[lead], samples[d], is_told, Z_ALIKE)
        who[d] = lead if low <= 0 <= high else d
    pooled: dict[Any, Any] = {}
    for d in order:
        for at, row in samples[d].items():
            mine = pooled.setdefault(who[d], {}).setdefault(at, [0, 0.0, 0])
            mine[:] = (a + b for a, b in zip(mine, row, strict=True))
    ranges: dict[Any, Any] = {}
    for one, bins in pooled.items():
        low, high = (0.0, 0.0) if one == order[0] else ratio_of(pooled[order[0]], bins, is_told)
        whole, speed = speed_of(pooled[order[0]]), speed_of(bins)
        low, high = whole * math.exp(low), whole * math.exp(high)
        ranges[one] = one, min(max(speed, low), high), low, high
    for slow, fast, slow_s, fast_s in shared:
        if slow in who and fast in who and who[slow] != who[fast]:
            (a, one, low, high), (b, other, least, most) = ranges[who[slow]], ranges[who[fast]]
            ratio = float(fast_s) / float(slow_s) / NEAR
            if low <= most * ratio and low / ratio <= most:
                high, least = min(high, most * ratio), max(least, low / ratio)
                ranges[a] = a, min(max(one, low), high), low, high
                ranges[b] = b, min(max(other, least), most), least, most
    idle = {d: who[first[like]] for d, like in likes.items() if d not in samples and like in first}
    return {d: ranges[one] for d, one in (who | idle).items()}


def by_prices(stages: list[Any], prices: list[Any], lanes: Any, bound: Any) -> tuple[Any, Any]:
    """Return the worth of all work and what devices earn at most a second: linear duality, at any prices.

    Of the speeds in their ranges those that say least of ``bound``: slow where much was done, fast elsewhere.
    """
    some = [(stage, price) for stage, price in zip(stages, prices, strict=True) if price]
    groups: dict[Any, dict[int, list[Any]]] = {}
    for at, (stage, price) in enumerate(some):
        for d, (who, _, low, high) in stage["rate"].items():
            rows = groups.setdefault(who if len(some) == 1 else d, {})
            row, n = rows.setdefault(at, [low, high, 0, 0, 0]), lanes[d] * (bound > stage["load"][d])
            more = stage["busy"][d], n * stage["load"][d], n
            row[2:] = (a + price * b for a, b in zip(row[2:], more, strict=True))
    work, rate = sum(stage["fixed"] * price for stage, price in some), 0
    for rows in groups.values():
        work += sum(low * busy for low, _, busy, _, _ in rows.values())
        found = []
        for low, high, busy, load, n in rows.values():
            speed = low if busy + load > n * bound else high
            own, a_second = speed * (busy + load) - low * busy, speed * n
            found.append((own - a_second * bound, own, a_second))
        _, more_work, more_rate = min(found)
        work, rate = work + more_work, rate + more_rate
    return work, rate


def long_items(stage: Any, n: int) -> list[Any]:
    """The items of a checked stage as ``(nanoseconds, device, how many)``, no more than ``n`` of a chunk."""
    chunks = ((row, sum(row[4][1::2])) for row in stage["chunks"] if row[0] in stage["rate"])
    return [(row[3] // (k + row[5]), row[0], min(k, n)) for row, k in chunks]


def by_longest(items: Any, rate: Any, n: int, lanes: Any, bound: Any) -> tuple[Any, Any]:
    """Return the work of the n longest items, and what n lanes do a second; speeds as in ``by_prices``."""
    sizes = ((float(s) * float(rate[d][1]), s, d) for s, d, k in items for _ in range(min(k, n)))
    groups: dict[Any, list[Any]] = {}
    for d, (who, _, low, high) in rate.items():
        groups.setdefault(who, [low, high, 0, 0])[3] += min(lanes[d], n)
    for _, s, d in heapq.nlargest(n, sizes):
        groups[rate[d][0]][2] += s
    found, left, work, done = [], n, 0, 0
    for low, high, busy, k in groups.values():
        speed = low if busy > k * bound else high
        found.append(((speed * (busy - k * bound) - low * busy) / k, speed, low, busy, k))
    for _, speed, low, busy, k in sorted(found):
        m = min(k, left)
        work, left = work + (m * speed + (k - m) * low) * busy / Fraction(k), left - m
        done += m * speed
    return work, done


def check_split(page: Any, proves: Any) -> tuple[Any, Any]:
    """Check routings or placements of layers: each expert's demand over the slots that hold it."""
    speeds, gpus, bound = numbers(page["speeds"]), page["slot2gpu"], Fraction(0)
    achieved = sum(numbers(page.get("moves", [])), Fraction(0))
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


CHECKS: dict[str, Any] = {"run": (check_times, "run"), "plan": (check_times, "plan")}
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
