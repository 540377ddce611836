"""What a certificate claims, found out in another and slower way; and random edits of certificates."""

import copy
import json
import math
import random
from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations, islice, product
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

SLACK = 1e-6


def is_true(page: dict[str, Any]) -> bool:
    """Whether the claim follows from the evidence. ``page`` is read with floats."""
    achieved, bound, ratio = (page["claim"][name] for name in ("achieved", "bound", "ratio"))
    slow = {"run": times, "plan": times, "routing": split, "placement": split}[page["kind"]]
    true_achieved, best = slow(page["evidence"], page["kind"])
    is_near = achieved >= true_achieved * (1 - SLACK) and bound <= best * (1 + SLACK) + 5
    return is_near and bound > 0 and achieved <= ratio * bound * (1 + SLACK)


def times(run: dict[str, Any], kind: str) -> tuple[float, float]:
    """Time of the stretches, and the least that a linear program says, or the longest items."""
    devices, stages = run["devices"], run["stages"]
    rows = []
    for stage in stages:
        chunks = [row[:3] for row in stage["chunks"]] + stage["loads"]
        for d, start, stop in chunks:
            rows += [(part, start, stop, d, devices[d]["lanes"]) for part in devices[d]["parts"] or [d]]
        done = [i for row in stage["chunks"] for first, n in pairs(row[4]) for i in range(first, first + n)]
        assert len(set(done)) == stage["items"]
        assert len(done) == stage["items"]
        assert all(0 <= row[3] <= row[2] - row[1] for row in stage["chunks"])
    for part, start, _, who, lanes in rows:
        others = [row for row in rows if row[0] == part and row[1] <= start < row[2]]
        assert {row[3] for row in others} <= {who}
        assert len(others) <= lanes
    achieved = sum(one["stop"] - one["start"] for one in run["stretches"])
    assert sorted(s for one in run["stretches"] for s in one["stages"]) == list(range(len(stages)))
    best = 0.0
    for one in run["stretches"]:
        some = [stages[s] for s in one["stages"]]
        for stage in some:
            assert all(one["start"] <= row[1] and row[2] <= one["stop"] for row in stage["chunks"])
        best += least(some, devices, kind)
    if kind == "plan":
        assert len(run["stretches"]) == 1
        in_order(stages)
    return achieved, best


def in_order(stages: list[dict[str, Any]]) -> None:
    """A task begins no sooner than its share of what comes before is done."""
    for stage in stages:
        for p in stage["needs"]:
            before = stages[p]["chunks"]
            for row in stage["chunks"]:
                n_begun = sum(other[1] <= row[1] for other in stage["chunks"])
                n_done = sum(other[2] <= row[1] for other in before)
                assert n_begun * len(before) <= n_done * len(stage["chunks"])


def pairs(items: list[int]) -> list[tuple[int, int]]:
    return list(zip(items[::2], items[1::2], strict=True))


def needed(row: list[Any]) -> float:
    """The share of a chunk whose items nobody had done before."""
    n = sum(n for _, n in pairs(row[4]))
    return n / (n + row[5])


def least(stages: list[dict[str, Any]], devices: list[dict[str, Any]], kind: str) -> float:
    """The least that a linear program says, or the longest items; of a run, at the worst of many speeds."""
    if kind == "run":
        ranges = [ranges_of(stage, devices) for stage in stages]
        return min(least_at(stages, devices, kind, speeds) for speeds in possible(ranges))
    speeds = [{d: s for d, s in enumerate(stage["speeds"]) if s is not None} for stage in stages]
    return least_at(stages, devices, kind, speeds)


def possible(ranges: list[dict[int, tuple[Any, float, float]]]) -> Iterator[list[dict[int, float]]]:
    """Speeds at the ends of their ranges; devices that are equally fast have the same."""
    ends = sorted(
        {(s, who, end) for s, rate in enumerate(ranges) for who, *some in rate.values() for end in some}
    )
    keys = sorted({(s, who) for s, who, _ in ends}, key=str)
    choices = [[end for s, who, end in ends if (s, who) == key] for key in keys]
    for chosen in islice(product(*choices), 200):
        at = dict(zip(keys, chosen, strict=True))
        yield [{d: at[s, who] for d, (who, *_) in rate.items()} for s, rate in enumerate(ranges)]


def ranges_of(stage: dict[str, Any], devices: list[dict[str, Any]]) -> dict[int, tuple[Any, float, float]]:
    """Device -> who it is as fast as, and the range of its speed, by every pair of chunks."""
    rows = [row for row in stage["chunks"] if row[7]]
    is_told = all(row[6] is not None for row in rows)
    logs: dict[int, list[tuple[float, int]]] = {}
    for d, _, _, busy, items, again, cost, _ in rows:
        n = again + sum(n for _, n in pairs(items))
        logs.setdefault(d, []).append((math.log(max(busy / 1e9 / (cost or n), 1e-9)), n))
    order = sorted(
        logs, key=lambda d: (len(logs[d]), speed(logs[d]), str(devices[d].get("like", d))), reverse=True
    )
    leads: dict[Any, int] = {}
    who = {}
    for d in order:
        lead = leads.setdefault(devices[d].get("like") or d, d)
        low, high = ratio(logs[lead], logs[d], is_told, 3.29)
        who[d] = lead if low <= 1e-12 and high >= -1e-12 else d
    pool = {one: [x for d in order if who[d] == one for x in logs[d]] for one in set(who.values())}
    base = speed(pool[order[0]])
    ends = {}
    for one in pool:
        low, high = (0.0, 0.0) if one == order[0] else ratio(pool[order[0]], pool[one], is_told)
        ends[one] = [base * math.exp(low), base * math.exp(high)]
    for slow, fast, slow_ns, fast_ns in stage.get("shared", ()):  # slow's speed is at most so much of fast's
        if slow in who and fast in who and who[slow] != who[fast]:
            a, b, most = ends[who[slow]], ends[who[fast]], fast_ns / slow_ns / 0.95
            if a[0] <= b[1] * most:
                a[1], b[0] = min(a[1], b[1] * most), max(b[0], a[0] / most)
    found = {}
    for d in order:
        found[d] = who[d], *ends[who[d]]
        told = stage["speeds"][d]
        assert told[1] == pytest.approx(found[d][1], rel=0.03)
        assert told[2] == pytest.approx(found[d][2], rel=0.03)
        found[d] = who[d], told[1], told[2]  # bins are 2 % wide, and what is certified is what is written
    assert [one is not None for one in stage["speeds"]] == [d in found for d in range(len(devices))]
    return found


def speed(logs: list[tuple[float, int]]) -> float:
    """Items a second over the middle half of the items."""
    each = sorted(x for x, n in logs for _ in range(n))
    quarter = len(each) / 4
    inside = [max(0.0, min(i + 1, 3 * quarter) - max(i, quarter)) for i in range(len(each))]
    return math.exp(-sum(w * x for w, x in zip(inside, each, strict=True)) / sum(inside))


def ratio(
    one: list[tuple[float, int]], other: list[tuple[float, int]], is_told: bool, z: float = 1.96
) -> tuple[float, float]:
    """The pairs of chunks that leave out 2.5 % of chance on each side, if there are that many."""
    gaps = sorted(a - b for a, _ in one for b, _ in other)
    n, m = len(one), len(other)
    half = z * math.sqrt(n * m * (n + m + 1) / 12)
    if half < n * m / 2:
        return gaps[math.floor(n * m / 2 - half)], gaps[math.ceil(n * m / 2 + half) - 1]
    n, m = sum(n for _, n in one), sum(n for _, n in other)
    if is_told or min(n, m) < 30:
        return (gaps[0], gaps[-1]) if is_told else (-math.log(1e9), math.log(1e9))
    middle, half = math.log(speed(other) / speed(one)), z * math.sqrt(1 / n + 1 / m)
    return middle - half, middle + half


def least_at(
    stages: list[dict[str, Any]], devices: list[dict[str, Any]], kind: str, speeds: list[dict[int, float]]
) -> float:
    work, longest = [], 0.0
    for stage, rate in zip(stages, speeds, strict=True):
        if kind == "run":
            lanes = sorted((rate[d] for d in rate for _ in range(devices[d]["lanes"])), reverse=True)
            sizes = [
                row[3] * rate[row[0]] / (row[5] + sum(n for _, n in pairs(row[4])))
                for row in stage["chunks"]
                if row[0] in rate
                for _ in range(min(len(lanes), sum(n for _, n in pairs(row[4]))))
            ]
            sizes.sort(reverse=True)
            prefixes = (sum(sizes[:k]) / sum(lanes[:k]) for k in range(1, len(lanes) + 1))
            longest = max([longest, *prefixes])
            work.append(sum(row[3] * rate[row[0]] * needed(row) for row in stage["chunks"] if row[0] in rate))
        else:
            for d, start, stop in stage["loads"]:
                assert stop - start >= max(stage["load"][p] for p in devices[d]["parts"] or [d])
            for d, start, _, busy, *_ in stage["chunks"]:
                some = devices[d]["parts"] or [d]
                assert busy * sum(rate[p] for p in set(some)) >= devices[d]["lanes"] * 1e9 * (1 - 1e-12)
                assert not any(stage["load"][p] for p in some) or any(
                    row[0] == d and row[2] <= start for row in stage["loads"]
                )
            work.append(len(stage["chunks"]) * 1e9)
    return max(longest, by_program(stages, devices, work, speeds))


def by_program(stages: Any, devices: Any, work: list[float], speeds: list[dict[int, float]]) -> float:
    """The least T at which shares of the devices' time, each less one load of what it does, are enough."""
    ways = [(s, d) for s, rate in enumerate(speeds) for d in rate if work[s] > 0]
    if not ways:
        return 0.0
    at_rate = [speeds[s][d] * devices[d]["lanes"] / work[s] for s, d in ways]
    loads = [stages[s]["load"][d] for s, d in ways]
    whole = 1 / share_done(ways, at_rate, len(devices))
    if not any(loads):
        return whole
    low, high = whole, whole + sum(max(stage["load"]) for stage in stages)
    while high - low > 1e-8 * high:
        middle = (low + high) / 2
        windows = [max(0.0, middle - load) * rate for load, rate in zip(loads, at_rate, strict=True)]
        low, high = (low, middle) if share_done(ways, windows, len(devices)) >= 1 else (middle, high)
    return high


def share_done(ways: list[tuple[int, int]], most: list[float], n_devices: int) -> float:
    """The largest share of every stage's work that shares of the devices' time do: a linear program."""
    unit = max(most) or 1.0
    stages = sorted({s for s, _ in ways})
    less, of_device = np.zeros((len(stages), len(ways) + 1)), np.zeros((n_devices, len(ways) + 1))
    for k, (s, d) in enumerate(ways):
        less[stages.index(s), k] = -most[k] / unit
        of_device[d, k] = 1.0
    less[:, -1] = 1.0
    limits = np.concatenate([np.zeros(len(stages)), np.ones(n_devices)])
    found = linprog([0.0] * len(ways) + [-1.0], A_ub=np.vstack([less, of_device]), b_ub=limits)
    assert found.status == 0, found.message
    return -float(found.fun) * unit


def split(page: dict[str, Any], kind: str) -> tuple[float, float]:
    """Load of the busiest GPU of each layer, and the least by trying every set of GPUs."""
    fastest = max(page["speeds"])
    speeds = [Fraction(str(one)) / Fraction(str(fastest)) for one in page["speeds"]]
    gpus, achieved, best = page["slot2gpu"], 0.0, 0.0
    for layer in page["layers"]:
        loads = [Fraction(0)] * len(speeds)
        served = [Fraction(0)] * len(layer["demand"])
        slots = layer["phy2log"]
        equal = [None if e is None else Fraction(str(layer["demand"][e])) / slots.count(e) for e in slots]
        for gpu, expert, quota in zip(gpus, slots, layer["quotas"] or equal, strict=True):
            if expert is not None:
                loads[gpu] += Fraction(str(quota))
                served[expert] += Fraction(str(quota))
        assert all(speed or not load for load, speed in zip(loads, speeds, strict=True))
        assert served == [Fraction(str(one)) for one in layer["demand"]]
        achieved += float(
            max((one / speed for one, speed in zip(loads, speeds, strict=True) if one), default=0)
        )
        holders = [
            {gpu for gpu, one in zip(gpus, layer["phy2log"], strict=True) if one == expert and speeds[gpu]}
            for expert in range(len(layer["demand"]))
        ]
        if kind == "routing":
            best += peak_of_tokens(layer["demand"], holders, speeds)
        else:
            best += any_placement(layer["demand"], sum(speeds[gpu] > 0 for gpu in gpus), speeds)
    return achieved, best


def peak_of_tokens(demand: list[int], holders: list[set[int]], speeds: list[Fraction]) -> float:
    """The least peak of whole tokens: for every set of GPUs, what only they can serve must fit in."""
    levels = sorted({Fraction(k) / s for s in speeds if s for k in range(int(sum(demand)) + 1)})
    sets = [set(some) for k in range(1, len(speeds) + 1) for some in combinations(range(len(speeds)), k)]
    forced = [
        (some, sum(n for n, where in zip(demand, holders, strict=True) if where <= some)) for some in sets
    ]
    for level in levels:
        if all(sum(int(level * speeds[gpu]) for gpu in some) >= load for some, load in forced):
            return float(level)
    raise AssertionError("nowhere to go")


def any_placement(demand: list[float], n_slots: int, speeds: list[Fraction]) -> float:
    living = [gpu for gpu, speed in enumerate(speeds) if speed]
    sets = [set(some) for k in range(1, len(living) + 1) for some in combinations(living, k)]
    best = float("inf")
    for chosen in product(sets, repeat=len(demand)):
        if sum(map(len, chosen)) <= n_slots:
            peak = max(
                sum(n for n, where in zip(demand, chosen, strict=True) if where <= some)
                / float(sum(speeds[gpu] for gpu in some))
                for some in sets
            )
            best = min(best, peak)
    return best


# --- random edits ---------------------------------------------------------------------------------------


NUMBERS = (0, 1, 2, -1, 10**6, 10**17, 10**30, 0.5, 1e-9, 1.0, 1e300, True, None, "1", [], {})
TEXTS = (
    lambda text, chance: text[: chance.randrange(len(text))],
    lambda text, chance: text.replace("0", "NaN", 1),
    lambda text, chance: text.replace(":1", ":1e999999999", 1),
    lambda text, chance: text.replace("[", "[" * 100_000, 1),
    lambda text, chance: text.replace('{"', '{"kind":"run","', 1),
    lambda text, chance: "\ufeff" + text,
    lambda text, chance: text.replace("1", "-1", 1),
    lambda text, chance: text.replace("}", "", 1),
)


def edited(page: dict[str, Any], chance: random.Random) -> bytes:
    """The file of a certificate after a random edit: of a number, a key, a list, a type, or of the text."""
    if chance.random() < 0.1:
        return chance.choice(TEXTS)(json.dumps(page, separators=(",", ":")), chance).encode()
    if chance.random() < 0.02:
        return json.dumps(page).encode(chance.choice(["utf-16", "utf-32", "utf-8-sig"]))
    page = copy.deepcopy(page)
    for _ in range(chance.choice([1, 1, 2])):
        edit(page, chance)
    return json.dumps(page).encode()


def edit(page: Any, chance: random.Random) -> None:
    where = page
    while True:
        keys = list(where) if isinstance(where, dict) else list(range(len(where)))
        if not keys:
            return
        key = chance.choice(keys)
        inner = where[key]
        if not isinstance(inner, dict | list) or not inner or chance.random() < 0.12:
            break
        where = inner
    what, value = chance.randrange(6), where[key]
    if what == 0:
        del where[key]
    elif what == 1:
        other = chance.choice(keys)
        where[key], where[other] = where[other], where[key]
    elif what == 2 and isinstance(where, list):
        where.insert(key, copy.deepcopy(value))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        by = chance.choice([value + 1, max(0, value - 1), value * 2, value // 2, value * 1.01, value * 0.99])
        where[key] = by if chance.random() < 0.7 else chance.choice(NUMBERS)
    else:
        where[key] = chance.choice(NUMBERS)
