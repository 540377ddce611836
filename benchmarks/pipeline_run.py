"""Makespan of a two-stage job on real workers, beside a replica per device and a barrier per batch.

    python benchmarks/pipeline_run.py [--items 100] [--fleet even|unequal|both] [--draws 1]

Stages sleep for as long as an item takes on that device: 5.0 s to edit and 3.4 s to score, 20 and 15 s to
load (the times of the job that this was built for), all divided by ``--faster``. Sleeping takes no core, so
that one machine plays several devices; processes, files, journal and messages are real. Five ways with the
same items, one after the other; of replicas and barriers, which would only sleep, the seconds are added up.

    evenload           evenload run, planned from the stages' estimates; at first it takes the devices for
                       alike, and is planned again when it sees that they are not
    evenload, pull     the same without planning again, and no device leaves a late item to a faster one
    replicas           a process per device, items dealt in turn and edited there; then scored on the first
    barrier per batch  the recipe of accelerate: equal slices, all wait for the slowest after each batch; then
                       the same for scores
    Ray Data           both stages stream, each with the best fixed pool of devices (``pipeline_ray_data``)

``bound_s`` is the least that any plan could need on these devices, loads included. ``wall_s`` begins when the
worker processes are up, for all ways. The last row says what evenload adds to the stages' own time for an
item and a stage, in milliseconds: with stages that do nothing, all seconds over all tasks.
"""

import argparse
import itertools
import json
import random
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pipeline_ray_data import ray_data
from record import record

Items = Sequence[tuple[float, float]]
FLEETS = {"even": [1.0, 1.0, 1.0, 1.0], "unequal": [1.0, 1.0, 1.0, 0.5, 0.5, 0.25]}
EDIT_S, SCORE_S, LOAD_EDIT_S, LOAD_SCORE_S = 5.0, 3.4, 20.0, 15.0
STAGES = """
import time

class Sleep:
    def __init__(self, context, *, load_s, item_s, speeds, column):
        self.slower = item_s / speeds[context.device.id]
        self.column = column
        time.sleep(load_s)
    def __call__(self, inputs, item):
        time.sleep(self.slower * inputs[self.column])
        return {"edited": "an edited picture"} if self.column == "edit" else {"score": inputs["edit"]}

class Nothing:
    def __call__(self, inputs, item):
        return {"first": "text"} if "first" not in inputs else {"second": 1.0}
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=100)
    parser.add_argument("--fleet", choices=[*FLEETS, "both"], default="both")
    parser.add_argument("--faster", type=float, default=20.0)
    parser.add_argument("--draws", type=int, default=1)
    args = parser.parse_args()
    fleets = list(FLEETS) if args.fleet == "both" else [args.fleet]
    cases = [(fleet, args.items, args.faster, draw) for fleet in fleets for draw in range(args.draws)]
    rows = [row for case in cases for row in compare(*case)] + [overhead()]
    record("pipeline_run", rows, faster=args.faster)


def drawn(n_items: int, draw: int) -> Items:
    """Sizes of each item to edit and to score, x0.6 .. x1.4."""
    rng = random.Random(draw)
    return [(rng.uniform(0.6, 1.4), rng.uniform(0.6, 1.4)) for _ in range(n_items)]


def compare(fleet: str, n_items: int, faster: float, draw: int) -> list[dict]:
    """One row for each way, on one draw of item times."""
    items, speeds, scale = drawn(n_items, draw), FLEETS[fleet], 1 / faster
    bound_s = scale * bound(items, speeds)
    rows = []
    edit, score = (
        ("edit", LOAD_EDIT_S * scale, EDIT_S * scale),
        ("score", LOAD_SCORE_S * scale, SCORE_S * scale),
    )
    for way in ("evenload", "evenload, pull", *COUNTED, "Ray Data"):
        if way == "Ray Data":
            wall_s = ray_data(items, speeds, edit, score)
        elif way in COUNTED:
            wall_s = scale * COUNTED[way](items, speeds)
        else:
            wall_s = evenload_run(items, speeds, scale, "pull" if "pull" in way else "measured")
        rows.append(
            {"fleet": fleet, "devices": len(speeds), "items": n_items, "draw": draw, "way": way,
             "wall_s": round(wall_s, 3), "bound_s": round(bound_s, 3), "ratio": round(wall_s / bound_s, 3)}
        )  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def bound(items: Items, speeds: Sequence[float]) -> float:
    """Seconds that no plan can go below, however it shares out the devices and whatever it knows beforehand.

    A device that only edits loads for 20 s, and what it edits last must still be scored; one that only
    scores finds nothing before the first edit; one that does both loads for 35 s. So an edit (a score) is
    done within ``for_edit`` (``for_score``) seconds of a device's time at the most, and as both take from the
    same time, the shares of it that they need cannot be more than there are devices, counted by speed.
    """
    edit, score = (sum(item[stage] for item in items) for stage in (0, 1))
    first_s = LOAD_EDIT_S + EDIT_S * min(item[0] for item in items) / max(speeds)
    last_s = SCORE_S * min(item[1] for item in items) / max(speeds)
    both_s = LOAD_EDIT_S + LOAD_SCORE_S
    low, high = first_s + last_s, 10 * both_s + (EDIT_S * edit + SCORE_S * score) / min(speeds)
    for _ in range(60):
        middle = (low + high) / 2
        for_edit = middle - min(both_s, LOAD_EDIT_S + last_s)
        for_score = middle - min(both_s, max(LOAD_SCORE_S, first_s))
        needed = EDIT_S * edit / for_edit + SCORE_S * score / for_score
        low, high = (low, middle) if needed <= sum(speeds) else (middle, high)
    return low


def evenload_run(items: Items, speeds: Sequence[float], scale: float, policy: str) -> float:
    """Seconds from the first order to the last result, the start of the worker processes left out."""
    from evenload.events import read_events
    from evenload.pipeline import Pipeline

    folder = Path(tempfile.mkdtemp())
    try:
        (folder / "stages.py").write_text(STAGES)
        rows = [{"id": str(at), "edit": edit, "score_": score} for at, (edit, score) in enumerate(items)]
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        by_device = {f"cpu:{at}": speed for at, speed in enumerate(speeds)}
        (folder / "job.yaml").write_text(
            json.dumps(
                {
                    "version": 1,
                    "job": {"name": "bench", "inputs": {"jsonl": "rows.jsonl"}},
                    "devices": f"cpu*{len(speeds)}",
                    "schedule": {"policy": policy},
                    "stages": [
                        stage("edit", EDIT_S * scale, LOAD_EDIT_S * scale, by_device),
                        stage("score", SCORE_S * scale, LOAD_SCORE_S * scale, by_device),
                    ],
                    "report": {"html": False, "trace": False},
                }
            )
        )
        result = Pipeline.from_yaml(folder / "job.yaml").run(out=folder / "run")
        assert result.n_done == len(items)
        events = list(read_events(folder / "run"))
        first = max(event.t for event in events if type(event).__name__ == "WorkerStarted")
        return last_s(events) - first
    finally:
        shutil.rmtree(folder)


def last_s(events: list) -> float:
    """When the last result was on disk and in the journal."""
    return max(event.t for event in events if type(event).__name__ == "ItemFinished")


def stage(name: str, item_s: float, load_s: float, speeds: dict) -> dict:
    """One entry of the job file's stages."""
    column = "edit" if name == "edit" else "score_"
    outputs = {"edited": "txt"} if name == "edit" else {"score": "number"}
    return {
        "name": name,
        "target": "stages.py:Sleep",
        "params": {"load_s": load_s, "item_s": item_s, "speeds": speeds, "column": column},
        "outputs": outputs,
        "estimate": {"item_s": item_s, "load_s": load_s},
    }


def replicas(items: Items, speeds: Sequence[float]) -> float:
    """Items in turn to the devices' edit models; then all scores on the first device."""
    edits = [EDIT_S * sum(edit for edit, _ in items[at :: len(speeds)]) for at in range(len(speeds))]
    edited_s = LOAD_EDIT_S + max(edit / speed for edit, speed in zip(edits, speeds, strict=True))
    return edited_s + LOAD_SCORE_S + SCORE_S * sum(score for _, score in items) / speeds[0]


def barriers(items: Items, speeds: Sequence[float]) -> float:
    """Both stages over equal slices in input order, with a barrier after every item of each."""
    n = len(speeds)
    cut = [items[at * len(items) // n : (at + 1) * len(items) // n] for at in range(n)]
    took = [[(EDIT_S * e / speed, SCORE_S * s / speed) for e, s in part]
            for part, speed in zip(cut, speeds, strict=True)]  # fmt: skip
    batches = itertools.zip_longest(*took, fillvalue=(0.0, 0.0))
    slowest = [max(one[stage] for one in batch) for batch in batches for stage in (0, 1)]
    return LOAD_EDIT_S + LOAD_SCORE_S + sum(slowest)


COUNTED = {"replicas": replicas, "barrier per batch": barriers}


def overhead(n_items: int = 500) -> dict:
    """Stages that do nothing on one worker: wall and CPU seconds for each item and stage, a file for each."""
    from evenload.events import read_events
    from evenload.pipeline import Pipeline

    folder = Path(tempfile.mkdtemp())
    try:
        (folder / "stages.py").write_text(STAGES)
        (folder / "rows.jsonl").write_text("".join(f'{{"id": "{at}"}}\n' for at in range(n_items)))
        (folder / "job.yaml").write_text(
            "version: 1\njob: {name: nothing, inputs: {jsonl: rows.jsonl}}\ndevices: cpu*1\n"
            "stages:\n  - {name: first, target: 'stages.py:Nothing', outputs: {first: txt}}\n"
            "  - {name: second, target: 'stages.py:Nothing', outputs: {second: number}}\n"
            "report: {html: false, trace: false}\n"
        )
        cpu_s = time.process_time()
        result = Pipeline.from_yaml(folder / "job.yaml").run(out=folder / "run")
        cpu_s = time.process_time() - cpu_s
        assert result.n_done == n_items
        events = list(read_events(folder / "run"))
        wall_s = last_s(events) - min(event.start_s for event in events if type(event).__name__ == "Span")
        print(f"overhead: {1000 * wall_s / 2 / n_items:.2f} ms of wall for an item and stage, "
              f"{1000 * cpu_s / 2 / n_items:.2f} ms of the driver's CPU")  # fmt: skip
        return {
            "fleet": "overhead", "devices": 1, "items": n_items, "draw": 0, "way": "ms per item and stage",
            "wall_s": round(1000 * wall_s / 2 / n_items, 3), "bound_s": 0.0, "ratio": 0.0,
        }  # fmt: skip
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
