"""A second reader of a run's log: it sorts the seconds of every slot from the page about the bound alone.

The rules are those of ``docs/explanation/bounds.md``, section "Every rule, for a second reader of the log". This file was written
from that page, before its author had read how the package does it, and imports nothing of the package. It is slow and plain.
Prices, the longest item and the bound are left out: what it gives are the seconds as they passed, before any price.
"""

import json
import math

LOSSES = ("start-up", "balance", "waiting", "overhead", "repeats", "not known")
LOADS = ("loads ", "brings ", "has ")
NO_ITEM = ("no item is ready", "nothing is ready", "nothing was ready", "results wait to be fetched")


def read(lines):
    """Give ``wall_s`` and, under ``slots``, for each slot its device, useful seconds and seconds of each loss."""
    events = on_one_clock([json.loads(line) for line in lines if line.strip()])
    wall_s = max((event[key] for event in events for key in ("t", "stop_s") if key in event), default=0.0)
    mark_needed(events)
    mark_unknown(events)
    slots = slots_of(events)
    for slot in slots:
        slot["covers"] = covers_of(slot, events)
    return {"wall_s": wall_s, "slots": [seconds_of(slot, events, wall_s) for slot in slots]}


def on_one_clock(events):
    """Continue the clock of the first session in the later ones."""
    first, shift = None, 0.0
    for event in events:
        if event["event"] == "RunStarted":
            first = event["unix_s"] if first is None else first
            shift = event["unix_s"] - first
        for key in ("t", "start_s", "stop_s"):
            if event.get(key) is not None:
                event[key] += shift
    return events


def items_of(event):
    if event.get("items"):
        return list(event["items"])
    return list(range(event["index"], event["index"] + event["n_items"]))


def mark_needed(events):
    """Tell of each chunk which share of its items came back for the first time."""
    done, over = {}, set()
    for event in events:
        kind, stage = event["event"], event.get("stage")
        if kind == "StageFinished":
            over.add(stage)
        elif kind == "StageStarted" and stage in over:
            over.discard(stage)
            done[stage] = set()
        elif kind == "Restored":
            done.setdefault(stage, set()).update(items_of(event))
        elif kind == "Span":
            items, seen = items_of(event), done.setdefault(stage, set())
            new = (
                {item for item in items if item not in seen} if event["status"] in ("ok", "failed") else set()
            )
            event["needed"] = len(new) / len(items) if items else 0.0
            seen |= new


def length_of(chunk):
    return chunk["stop_s"] - chunk["start_s"]


def busy_of(chunk):
    busy = chunk.get("busy_s") or 0.0
    return min(busy, length_of(chunk)) if busy > 0 else length_of(chunk)


def told_of(chunk):
    return min(chunk.get("waited_s") or 0.0, busy_of(chunk))


def mark_unknown(events):
    """Tell of each chunk the seconds of which nobody knows what they were."""
    kinds, samples = {}, {}
    for event in events:
        if event["event"] == "RunStarted":
            kinds.update({device: facts.get("kind") for device, facts in event["devices"].items()})
        elif event["event"] == "DeviceSample":
            samples.setdefault(event["device"], []).append((event["t"], event.get("utilization")))
    for chunk in (event for event in events if event["event"] == "Span"):
        rest, cpu = busy_of(chunk) - told_of(chunk), chunk.get("cpu_s")
        judged = all(
            kinds.get(device) == "cpu" or found_idle(chunk, samples.get(device, []))
            for device in chunk["device"].split("+")
        )
        chunk["unknown"] = rest - cpu if cpu is not None and cpu < rest / 2 and judged else 0.0


def found_idle(chunk, samples):
    inside = sorted((t, load) for t, load in samples if chunk["start_s"] <= t <= chunk["stop_s"])
    if not inside or any(load is None or math.isnan(load) or load > 0.02 for _, load in inside):
        return False
    at = [chunk["start_s"], *(t for t, _ in inside), chunk["stop_s"]]
    return all(after - before <= length_of(chunk) / 3 for before, after in zip(at, at[1:]))


def slots_of(events):
    """Give the slots: one for each worker that a device had at once, and one for a device without any worker."""
    slots, of_worker, free, devices = [], {}, [], {}

    def slot_of(worker, device):
        if worker not in of_worker:
            slot = next((slot for slot in free if slot["device"] == device), None)
            if slot is None:
                slot = {"device": device, "own": []}
                slots.append(slot)
            else:
                free.remove(slot)
            of_worker[worker] = slot
        return of_worker[worker]

    for event in events:
        kind = event["event"]
        if kind == "RunStarted":  # no worker of an earlier session lives on
            devices.update(event["devices"])
            of_worker.clear()
            free = list(slots)
        elif kind in ("WorkerStarted", "Span"):
            slot_of(event["worker"], event["device"])["own"].append(id(event))
        elif kind == "WorkerExited" and event["worker"] in of_worker:
            free.append(of_worker[event["worker"]])
    with_worker = {slot["device"] for slot in slots}
    return slots + [{"device": device, "own": []} for device in devices if device not in with_worker]


def covers_of(slot, events):
    """Give what covers the slot's time, in the order of the log: the event, from when, until when."""
    own, covers = set(slot["own"]), []
    for event in events:
        if id(event) in own and event["event"] == "Span":
            covers.append((event, event["start_s"], event["stop_s"]))
        elif id(event) in own:
            covers.append((event, event["t"] - event.get("startup_s", 0.0), event["t"]))
        elif event["event"] == "Idle" and event["device"] == slot["device"]:
            covers.append((event, event["start_s"], event["stop_s"]))
    return covers


def seconds_of(slot, events, wall_s):
    """Sort every second of a slot, from the start of the run to its end."""
    seconds = {"useful": 0.0, **dict.fromkeys(LOSSES, 0.0)}
    gaps = [(0.0, wall_s)]
    for event, start, stop in slot["covers"]:
        taken = [(max(a, start), min(b, stop)) for a, b in gaps if max(a, start) < min(b, stop)]
        gaps = (
            [part for a, b in gaps for part in ((a, min(b, start)), (max(a, stop), b)) if part[0] < part[1]]
            if taken
            else gaps
        )
        for a, b in taken:
            for name, part in sorted_cover(event, a, b, slot, events):
                seconds[name] += part
    for a, b in gaps:
        for name, part in sorted_gap(a, b, slot, events):
            seconds[name] += part
    return {"device": slot["device"], **seconds}


def useful_starts(chunks):
    return [event["start_s"] for event in chunks if event["event"] == "Span" and event["needed"] > 0]


def sorted_cover(event, a, b, slot, events):
    if event["event"] == "WorkerStarted":
        return [("start-up", b - a)]
    if event["event"] == "Span":
        busy, length = busy_of(event), length_of(event)
        in_task = (b - a) * busy / length
        useful = in_task * event["needed"]
        told, unknown = useful * told_of(event) / busy, useful * event["unknown"] / busy
        return [
            ("useful", useful - told - unknown),
            ("waiting", told),
            ("not known", unknown),
            ("repeats", in_task - useful),
            ("overhead", b - a - in_task),
        ]
    if event["why"].startswith(LOADS):
        return [("start-up", b - a)]
    if not event["why"].startswith(NO_ITEM):
        return [("balance", b - a)]
    if any(start >= event["stop_s"] for start in useful_starts(cover for cover, _, _ in slot["covers"])):
        return [("waiting", b - a)]
    cut = min(max(max(useful_starts(events), default=a), a), b)
    return [("waiting", cut - a), ("balance", b - cut)]


def sorted_gap(a, b, slot, events):
    """Sort a stretch that no event of the slot covers."""
    runs = [event for event in events if event["event"] == "Span"]
    first, last = min((c["start_s"] for c in runs), default=b), max((c["stop_s"] for c in runs), default=a)
    own = sorted((c for c, _, _ in slot["covers"] if c["event"] == "Span"), key=lambda c: c["start_s"])
    begin = b
    stages = []
    for chunk in own:  # the first chunk of a stage, after another stage
        if chunk["stage"] not in stages and stages and chunk["start_s"] == b:
            started = [
                event["t"]
                for event in events
                if event["event"] == "StageStarted" and event["stage"] == chunk["stage"] and event["t"] <= b
            ]
            begin = max(a, max(started, default=a))
        stages.append(chunk["stage"])
    from_s = min((start for _, start, _ in slot["covers"]), default=0.0)
    until_s = max((stop for _, _, stop in slot["covers"]), default=0.0)
    open_at = stage_times(events)
    points = sorted(
        {a, b, *(p for p in (begin, first, last, from_s, until_s, *(t for t, _ in open_at)) if a < p < b)}
    )
    found = []
    for start, stop in zip(points, points[1:]):
        middle = (start + stop) / 2
        if middle > begin or middle < min(first, from_s):
            name = "start-up"
        elif middle < from_s:
            name = "waiting"
        elif middle < until_s:
            name = (
                "overhead"
                if max((x for x in open_at if x[0] <= middle), default=(0, False))[1]
                else "waiting"
            )
        else:
            name = "balance" if middle < last else "overhead"
        found.append((name, stop - start))
    return found


def stage_times(events):
    """Give the moments at which stages began or ended, with whether any was open from then on."""
    opened, times = set(), []
    for event in events:
        if event["event"] == "StageStarted":
            opened.add(event["stage"])
        elif event["event"] == "StageFinished":
            opened.discard(event["stage"])
        else:
            continue
        times.append((event["t"], bool(opened)))
    return times
