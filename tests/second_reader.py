"""A second reader of a run's log: it sorts the seconds of every slot by the page about the bound alone.

The rules are those of ``docs/explanation/bounds.md``, section "Every rule, for a second reader of the log".
It was written from that page before its author had read the package, and imports nothing of it. It is slow
and plain. Prices, the longest item and the bound are left out: it gives seconds as they passed.
"""

import json
import math
from itertools import pairwise

LOSSES = ("start-up", "balance", "waiting", "overhead", "repeats", "not known")
LOADS = ("loads ", "brings ", "has ")
NO_ITEM = ("no item is ready", "nothing is ready", "nothing was ready")
NO_WORK = ("superseded", "lost")


def read(lines):
    """Give ``wall_s``, and under ``slots`` by name the useful seconds and those of each loss."""
    events = on_one_clock([json.loads(line) for line in lines if line.strip()])
    mark_needed(events)
    mark_unknown(events)
    run = times_of(events)
    slots = {name: seconds_of(covers, run) for name, covers in covers_of(events).items()}
    return {"wall_s": run["wall_s"], "slots": slots}


def on_one_clock(events):
    """Begin each later session where the events before it ended."""
    latest = shift = 0.0
    for event in events:
        if event["event"] == "RunStarted":
            shift = latest
        for key in {"t", "start_s", "stop_s"} & event.keys():
            event[key] += shift
            latest = max(latest, event[key])
    return events


def mark_needed(events):
    """Tell of each chunk which share of its items is needed, and when its stage began."""
    done, began, is_cut, is_mixed = {}, {}, set(), set()
    is_open = set()
    for event in events:
        kind, stage = event["event"], event.get("stage")
        if kind == "RunStarted":
            is_cut |= is_open
            is_open.clear()
        elif kind == "StageStarted":
            began.setdefault(stage, event["t"])
            if stage not in is_cut:
                is_mixed = is_mixed | {stage} if stage in is_open else is_mixed - {stage}
                done[stage] = set()
            is_cut.discard(stage)
            is_open.add(stage)
        elif kind == "StageFinished":
            is_open.discard(stage)
            began.pop(stage, None)
        elif kind in ("Restored", "Span"):
            items = event.get("items") or range(event["index"], event["index"] + event["n_items"])
            before = set() if stage in is_mixed else done.setdefault(stage, set())
            new = set(items) - before if event.get("status") not in NO_WORK else set()
            before |= new
            event["needed"] = len(new) / event["n_items"] if event["n_items"] else 0.0
            event["began_s"] = began.get(stage, 0.0)


def length_of(chunk):
    return chunk["stop_s"] - chunk["start_s"]


def busy_of(chunk):
    busy = chunk["busy_s"] if chunk["busy_s"] > 0 else length_of(chunk)
    return min(busy, length_of(chunk)) if chunk["n_items"] else 0.0


def told_of(chunk):
    return min(chunk.get("waited_s") or 0.0, busy_of(chunk))


def mark_unknown(events):
    """Tell of each chunk the seconds of which nobody knows what they were."""
    kinds, samples = {}, {}
    for event in events:
        if event["event"] == "RunStarted":
            kinds |= {device: facts.get("kind") for device, facts in event["devices"].items()}
        elif event["event"] == "DeviceSample":
            samples.setdefault(event["device"], []).append((event["t"], event.get("utilization")))
        elif event["event"] == "Span":
            rest, cpu = busy_of(event) - told_of(event), event.get("cpu_s")
            is_judged = all(
                kinds.get(device) == "cpu" or found_idle(event, samples.get(device, ()))
                for device in event["device"].split("+")
            )
            event["unknown"] = rest - cpu if cpu is not None and cpu < rest / 2 and is_judged else 0.0


def found_idle(chunk, samples):
    """Whether samples found, all through the chunk, that its device did nothing."""
    inside = [(t, load) for t, load in samples if chunk["start_s"] <= t <= chunk["stop_s"]]
    at = [chunk["start_s"], *sorted(t for t, _ in inside), chunk["stop_s"]]
    is_idle = all(load is not None and load <= 0.02 for _, load in inside)
    return is_idle and all(after - before <= length_of(chunk) / 3 for before, after in pairwise(at))


def times_of(events):
    """Give the moments of the run that its rules speak of."""
    chunks = [event for event in events if event["event"] == "Span"]
    began, stages = {}, []
    for event in events:
        if event["event"] == "StageStarted":
            began.setdefault(event["stage"], event["t"])
        elif event["event"] == "StageFinished" and event["stage"] in began:
            stages.append((began.pop(event["stage"]), event["t"]))
    wall_s = max((event[key] for event in events for key in {"t", "stop_s"} & event.keys()), default=0.0)
    kinds = [event["event"] for event in events]
    session = kinds[max([0, *(at for at, kind in enumerate(kinds) if kind == "RunStarted")]) :]
    return {
        "wall_s": wall_s,
        "first": min((chunk["start_s"] for chunk in chunks), default=wall_s),
        "last": max((chunk["stop_s"] for chunk in chunks), default=0.0),
        "last_useful": max((chunk["start_s"] for chunk in chunks if chunk["needed"]), default=0.0),
        "stages": stages + [(t, wall_s) for t in began.values()],
        "names_stages": "StageStarted" in kinds,
        "is_over": "RunFinished" in session or ("RunStarted" not in kinds and not began),
    }


def covers_of(events):
    """Give for each slot by name what covers its time, in the order of the log: event, start, stop."""
    slots, slot_of, free, devices = {}, {}, {}, {}
    for event in events:
        kind, device = event["event"], event.get("device")
        if kind == "RunStarted":
            devices |= event["devices"]
        elif kind in ("WorkerStarted", "Span"):
            worker, own = (device, event["worker"]), slots.setdefault(device, [])
            if worker not in slot_of and free.get(device):
                slot_of[worker] = min(free[device])
                free[device].remove(slot_of[worker])
            elif worker not in slot_of:
                slot_of[worker] = sum(at[0] == device for at in {(w[0], n) for w, n in slot_of.items()})
            while len(own) <= slot_of[worker]:
                own.append([])
            stop = event["t"] if kind == "WorkerStarted" else event["stop_s"]
            start = stop - event["startup_s"] if kind == "WorkerStarted" else event["start_s"]
            own[slot_of[worker]].append((event, max(0.0, start), stop))
        elif kind == "WorkerExited" and (device, event["worker"]) in slot_of:
            free.setdefault(device, set()).add(slot_of[device, event["worker"]])
        elif kind == "Idle":
            for own in slots.setdefault(device, [[]]):
                own.append((event, max(0.0, event["start_s"]), event["stop_s"]))
    in_gangs = {part for device in slots if "+" in device for part in device.split("+")}
    found = {}
    for device in {**devices, **slots}:
        has_chunk = any(cover[0]["event"] == "Span" for own in slots.get(device, ()) for cover in own)
        if has_chunk or device not in in_gangs:
            for number, own in enumerate(slots.get(device) or [[]]):
                found[f"{device}/{number}" if number else device] = own
    return found


def seconds_of(covers, run):
    """Sort every second of a slot, from the start of the run to its end."""
    seconds = {"useful": 0.0, **dict.fromkeys(LOSSES, 0.0)}
    gaps = [(0.0, run["wall_s"])]
    for event, start, stop in covers:
        for a, b in ((max(a, start), min(b, stop)) for a, b in gaps):
            for name, part in parts_of(event, a, b, run) if a < b else ():
                seconds[name] += part
        if start < stop:
            gaps = [
                one for a, b in gaps for one in ((a, min(b, start)), (max(a, stop), b)) if one[0] < one[1]
            ]
    for a, b in gaps:
        for name, part in silent(a, b, covers, run):
            seconds[name] += part
    known_s = sum(seconds.values())
    return {name: part * run["wall_s"] / known_s for name, part in seconds.items()} if known_s else seconds


def parts_of(event, a, b, run):
    """Sort the seconds from ``a`` to ``b``, which an event covers."""
    if event["event"] == "WorkerStarted":
        return [("start-up", b - a)]
    if event["event"] == "Span":
        busy = busy_of(event)
        in_task = (b - a) * busy / length_of(event)
        useful = in_task * event["needed"]
        told, unknown = (useful * part / busy if busy else 0.0 for part in (told_of(event), event["unknown"]))
        rest = {"repeats": in_task - useful, "overhead": b - a - in_task}
        return [("useful", useful - told - unknown), ("waiting", told), ("not known", unknown), *rest.items()]
    if event["why"].startswith(NO_ITEM):
        waited = max(0.0, min(b, run["last_useful"]) - a)
        return [("waiting", waited), ("balance", b - a - waited)]
    is_load, is_unfetched = (
        event["why"].startswith(LOADS),
        event["why"].startswith("results wait to be fetched"),
    )
    return [("start-up" if is_load else "waiting" if is_unfetched else "balance", b - a)]


def silent(a, b, covers, run):
    """Sort the seconds from ``a`` to ``b``, which no event of the slot covers."""
    firsts = {}
    for event, start, _ in sorted(covers, key=lambda cover: cover[1]):
        if event["event"] == "Span":
            firsts.setdefault(event["stage"], (max(a, event["began_s"]), start))
    loads = [(began, start) for began, start in list(firsts.values())[1:] if a < start <= b]
    long = [(start, stop) for _, start, stop in covers if start < stop]
    from_s, until_s = (
        min((start for start, _ in long), default=math.inf),
        max((stop for _, stop in long), default=0.0),
    )
    stages, first, last = run["stages"], run["first"], run["last"]
    points = {a, b, from_s, until_s, first, last, *(t for pair in (*loads, *stages) for t in pair)}
    for start, stop in pairwise(sorted(t for t in points if a <= t <= b)):
        middle = (start + stop) / 2
        if any(began < middle < load for began, load in loads) or middle < min(first, from_s):
            yield "start-up", stop - start
        elif middle > until_s and from_s < until_s and not run["is_over"]:
            continue  # a run that goes on: nobody knows yet
        elif middle > last:
            yield "overhead", stop - start
        elif middle > until_s:
            yield "balance", stop - start
        elif middle < from_s:
            yield "waiting", stop - start
        else:
            is_open = not run["names_stages"] or any(began < middle < end for began, end in stages)
            yield "overhead" if is_open else "waiting", stop - start
