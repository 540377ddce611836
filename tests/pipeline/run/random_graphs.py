"""Random graphs of stages, and their slow twin: a plain loop, one item and one stage after the other."""

import copy
import hashlib
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from evenload.pipeline.seeds import item_seed

EDITS = ("parameter", "code", "column", "item", "order", "fewer")
POLICIES = ("measured", "pull:3", "guided", "factoring:weighted", "static:proportional")

STAGES = '''
import asyncio
import hashlib
import os
import signal
from pathlib import Path
HERE = Path(__file__).parent
STOP_AFTER = HERE / "stop_after"

def kill_if_said(order):
    """Once so many calls were made: the process with this number, or 0: this one. Each order is done once."""
    try:
        most, victim = map(int, order.read_text().split())
        with order.with_suffix(".counted").open("ab", buffering=0) as counted:
            counted.write(b".")
            n = os.fstat(counted.fileno()).st_size
        if n > most:
            order.unlink()
    except (OSError, ValueError):  # another worker does it
        return
    if n > most:
        os.kill(victim or os.getpid(), signal.SIGKILL)

def digest(*parts):
    return int(hashlib.sha256(repr(parts).encode()).hexdigest()[:8], 16)

def seen(value, name):
    if isinstance(value, list):
        return [{key: seen(one, key) for key, one in part.items()} for part in value]
    return Path(value).read_text() if name[0] == "f" else value

class Step:
    may_stop, version = True, 0
    def __init__(self, context, *, name, fails=0, expand=False):
        self.name, self.fails, self.expand = name, fails, expand
    def __call__(self, inputs, item):
        if self.may_stop and STOP_AFTER.exists():
            left = int(STOP_AFTER.read_text()) - 1
            STOP_AFTER.write_text(str(left))
            if left <= 0:
                STOP_AFTER.unlink()
                raise KeyboardInterrupt
        kill_if_said(HERE / "kill_worker")
        kill_if_said(HERE / "kill_driver")
        with (HERE / "calls").open("a") as calls:
            calls.write(f"{self.name} {item.id} {item.seed}\\n")
        values = sorted((name, seen(value, name)) for name, value in inputs.items())
        number = digest(self.name, self.version, values, item.id, item.seed)
        if self.fails and number % self.fails == 0:
            raise ValueError(f"{self.name} cannot do {number}")
        made = {f"n_{self.name}": number % 1000, f"f_{self.name}": f"text {number}"}
        if not self.expand:
            return made
        own = [{"id": f"x{n}"} if number % 2 else {} for n in range(number % 4)]
        parts = [{**one, **made, f"k_{self.name}": n} for n, one in enumerate(own)]
        return {f"p_{self.name}": parts, f"t_{self.name}": number % 10}
    def batch(self, inputs, items):
        return list(map(self, inputs, items))

class Waits(Step):
    batch, may_stop = None, False  # it runs in another thread than what is to be interrupted
    async def __call__(self, inputs, item):
        await asyncio.sleep(digest(item.id, self.name) % 3 / 1000)
        return super().__call__(inputs, item)

class Keyed(Step):
    def batch_key(self, inputs, item):
        key = digest(item.id) % 3
        return None if key == 2 else ["key", key]
    def batch(self, inputs, items):
        assert len({self.batch_key(None, item)[1] for item in items}) == 1
        return super().batch(inputs, items)
'''


@dataclass
class Step:
    """One stage of a random job.

    gathers  the number of the stage whose parts it takes together
    batch    what the job file says of its batches
    version  of its code
    """

    name: str
    needs: list[int]
    fails: int = 0
    when: tuple[str, int] | None = None
    samples: int = 1
    is_best: bool = False
    expands: bool = False
    gathers: int | None = None
    is_partial: bool = False
    scope: tuple[int, ...] = ()
    batch: dict[str, Any] = field(default_factory=dict)
    version: int = 0


def random_steps(rng: random.Random) -> list[Step]:
    """A graph of up to seven stages, some with conditions and failures, some that make parts or gather them;
    else samples where nothing runs beside.
    """
    steps: list[Step] = []
    may_expand = rng.random() < 0.6
    for number in range(rng.randint(2, 7)):
        step = None
        while step is None:
            step = random_step(rng, steps, number, may_expand)
        step.batch = random_batch(random.Random(f"{rng.getstate()}"))
        steps.append(step)
        mine = [need for need in step.needs if steps[need].scope == step.scope and not steps[need].expands]
        if mine and rng.random() < 0.3:
            step.when = (f"n_{steps[rng.choice(mine)].name}", rng.choice([200, 500, 800]))
    alone = [n for n in range(len(steps)) if all(n in before(steps, m) or m in before(steps, n) or m == n
                                                 for m in range(len(steps)))]  # fmt: skip
    if alone and rng.random() < 0.6 and not may_expand:
        steps[rng.choice(alone)].samples = 3
        first = next(n for n, step in enumerate(steps) if step.samples > 1)
        if (later := [n for n in alone if n >= first]) and rng.random() < 0.8:
            steps[rng.choice(later)].is_best = True
    return steps


def random_step(rng: random.Random, steps: list[Step], number: int, may_expand: bool) -> Step | None:
    """A stage with any needs; None if these are parts of different sets."""
    needs = sorted(rng.sample(range(number), min(number, rng.choice([0, 1, 1, 1, 2, 3]))))
    step = Step("abcdefg"[number], needs, rng.choice([0, 0, 0, 4, 9]))
    step.expands = may_expand and rng.random() < 0.35
    given = [(*steps[need].scope, need) if steps[need].expands else steps[need].scope for need in needs]
    step.scope = inner = max(given, key=len, default=())
    if inner and rng.random() < 0.5:
        step.gathers, step.scope, step.is_partial = inner[-1], inner[:-1], rng.random() < 0.5
    fits = all(one == inner or one == step.scope[: len(one)] for one in given)
    return step if fits else None


def random_batch(rng: random.Random) -> dict[str, Any]:
    """Keys of a stage that has batches, or whose items wait; {} of one that has neither."""
    if rng.random() < 0.5:
        return rng.choice([{}, {"base": "Waits", "in_flight": rng.choice([1, 2, 8])}])
    batch = {"batch": rng.choice([2, 3, 8]), "max_wait_s": rng.choice([0, 0.01, 0.1])}
    return {**batch, **rng.choice([{}, {"batch_key": "column"}, {"base": "Keyed"}])}


def before(steps: list[Step], number: int) -> set[int]:
    return set(steps[number].needs).union(*(before(steps, need) for need in steps[number].needs))


def document(steps: list[Step], *, copies: bool = False) -> dict[str, Any]:
    stages = []
    for step in steps:
        stage: dict[str, Any] = {
            "name": step.name,
            "target": f"stages.py:{step.name.upper()}",
            "needs": [steps[need].name for need in step.needs],
            "params": {"name": step.name, "fails": step.fails, "expand": step.expands},
            "outputs": {f"n_{step.name}": "number", f"f_{step.name}": "txt"},
            **{key: value for key, value in step.batch.items() if key != "base"},
        }
        if step.expands:
            stage["expand"] = f"p_{step.name}"
        if step.gathers is not None:
            by = f"p_{steps[step.gathers].name}"
            stage["gather"] = {"by": by, "allow_failed": True} if step.is_partial else by
        if step.when:
            stage["when"] = f"{step.when[0]} >= {step.when[1]}"
        if step.samples > 1:
            stage["samples"] = step.samples
        if step.is_best:
            stage["best"] = {"by": f"n_{step.name}"}
        stages.append(stage)
    return {
        "version": 1,
        "job": {"name": "graph", "inputs": {"jsonl": "rows.jsonl"}, "seed": 3},
        "devices": "cpu*2",
        "schedule": {"policy": random.Random(repr(steps)).choice(POLICIES), "copies": copies},
        "stages": stages,
        "errors": {"max_error_rate": 1.0},
        "report": {"html": False, "trace": False},
    }


# --- the twin: one item after the other, one stage after the other ------------------------------------------


@dataclass
class Way:
    """A sample or a part of an item in the plain loop."""

    id: str
    sample: int
    seed: int
    made: dict[int, dict[str, Any]] = field(default_factory=dict)
    closed: dict[int, str] = field(default_factory=dict)
    is_chosen: bool = True
    scope: tuple[int, ...] = ()
    parent: "Way | None" = None
    parts: dict[int, list["Way"]] = field(default_factory=dict)

    @property
    def line(self) -> list["Way"]:
        return [*(self.parent.line if self.parent else ()), self]

    @property
    def outputs(self) -> dict[str, Any]:
        return {name: value for n in sorted(self.made) for name, value in self.made[n].items()}


Row = tuple[str, dict[str, Any], str | None, list[Any]]


def plain_item(steps: list[Step], row: dict[str, Any]) -> Row:
    """Status, outputs, the stage of the error and the parts of one item, done by itself."""
    ways = [Way(row["id"], 0, item_seed(3, row["id"]))]
    for number, step in enumerate(steps):
        if step.samples > 1 and all(need in ways[0].made for need in step.needs):
            passes = step.when is None or given(ways[0], steps, number, row)[step.when[0]] >= step.when[1]
            for sample in range(1, step.samples if passes else 1):
                seed = item_seed(3, row["id"], sample)
                ways.append(Way(row["id"], sample, seed, dict(ways[0].made), dict(ways[0].closed)))
        for way in [way for way in ways if way.is_chosen and way.scope == step.scope]:
            take(way, steps, number, row)
            ways += way.parts.get(number, [])
        if step.is_best:
            through = [way for way in ways if number in way.made]
            ranked = sorted(through, key=lambda way: (-way.made[number][f"n_{step.name}"], way.sample))
            for way in ranked[1:]:
                way.is_chosen = False
    wholes = [way for way in ways if not way.scope]
    fates = [fate(way, steps) for way in wholes]
    order = ("done", "filtered", "failed", "not chosen")
    at = min(range(len(wholes)), key=lambda n: (order.index(fates[n]), -len(wholes[n].made), n))
    best = wholes[at]
    parts = [[one.id, fate(one, steps), one.outputs, failed_in(one, steps)] for one in parts_of(best)]
    return fates[at], best.outputs, failed_in(best, steps) if fates[at] == "failed" else None, parts


def parts_of(way: Way) -> list[Way]:
    return [one for n in sorted(way.parts) for part in way.parts[n] for one in (part, *parts_of(part))]


def given(way: Way, steps: list[Step], number: int, row: dict[str, Any]) -> dict[str, Any]:
    """What a stage sees of an item or a part."""
    values = {name: value for name, value in row.items() if name != "id"}
    earlier = sorted(before(steps, number))
    for n in earlier:
        for one in way.line:
            values |= one.made.get(n, {})
    gathers = steps[number].gathers
    if gathers is not None:
        inner = [n for n in steps[number].needs if n == gathers or gathers in steps[n].scope]
        values[f"p_{steps[gathers].name}"] = [
            {"id": part.id} | {k: v for n in earlier for k, v in part.made.get(n, {}).items()}
            for part in way.parts.get(gathers, [])
            if all(n in part.made for n in inner)
        ]
    return values


def lost(part: Way, steps: list[Step], need: int) -> bool:
    """Has the part failed on its way through ``need``, not only been filtered?"""
    for one in part.line:
        if need in one.closed:
            shut = one.closed[need] == "shut" and any(lost(one, steps, n) for n in steps[need].needs)
            return one.closed[need] == "failed" or shut
    return False


def is_closed(way: Way, steps: list[Step], number: int) -> bool:
    gathers = steps[number].gathers
    needs = [gathers if gathers in steps[n].scope else n for n in steps[number].needs]
    return any(need in one.closed for need in needs for one in way.line)


def take(way: Way, steps: list[Step], number: int, row: dict[str, Any]) -> None:
    step = steps[number]
    if is_closed(way, steps, number):
        way.closed[number] = "shut"
        return
    values = given(way, steps, number, row)
    parts = way.parts.get(step.gathers, []) if step.gathers is not None else []
    text = repr((step.name, step.version, sorted(values.items()), way.id, way.seed))
    found = int(hashlib.sha256(text.encode()).hexdigest()[:8], 16)
    if not step.is_partial and any(lost(part, steps, need) for part in parts for need in step.needs):
        way.closed[number] = "failed"
    elif step.when and values[step.when[0]] < step.when[1]:
        way.closed[number] = "filtered"
    elif step.fails and found % step.fails == 0:
        way.closed[number] = "failed"
    elif not step.expands:
        way.made[number] = {f"n_{step.name}": found % 1000, f"f_{step.name}": f"text {found}"}
    else:
        expand(way, number, step.name, found)


def expand(way: Way, number: int, name: str, found: int) -> None:
    way.made[number] = {f"p_{name}": found % 4, f"t_{name}": found % 10}
    way.parts[number] = []
    for n in range(found % 4):
        made = {f"n_{name}": found % 1000, f"f_{name}": f"text {found}", f"k_{name}": n}
        part_id = f"{way.id}/p_{name}/" + (f"x{n}" if found % 2 else f"{n + 1:03}")
        part = Way(part_id, 0, item_seed(3, part_id), {number: made})
        part.scope, part.parent = (*way.scope, number), way
        way.parts[number].append(part)


def failed_parts(way: Way, steps: list[Step]) -> list[Way]:
    """Parts that failed where no stage that gathers goes on without them."""
    partial = [n for n, step in enumerate(steps) if step.is_partial]
    excused = {m for n in partial for m in before(steps, n) if steps[n].gathers in steps[m].scope}
    found = []
    for part in (part for n in sorted(way.parts) for part in way.parts[n]):
        own = {m for m, why in part.closed.items() if why == "failed"}
        inner = {n for n in part.parts if any(one.parent is part for one in failed_parts(part, steps))}
        if fate(part, steps) == "failed" and not (own or inner) <= excused:
            found.append(part)
    return found


def failed_in(way: Way, steps: list[Step]) -> str | None:
    """The stage whose error is the way's."""
    own = [n for n, why in sorted(way.closed.items()) if why == "failed"]
    if own:
        return steps[own[0]].name
    inner = failed_parts(way, steps)
    return failed_in(inner[0], steps) if inner else None


def reaches(way: Way, steps: list[Step]) -> bool:
    ends = {n for n in range(len(steps)) if not any(n in step.needs for step in steps)}
    nothing = any(not parts and any(n in steps[end].scope for end in ends) for n, parts in way.parts.items())
    return nothing or bool(ends & way.made.keys()) or any(reaches(part, steps) for part in parts_of(way))


def fate(way: Way, steps: list[Step]) -> str:
    if not way.is_chosen:
        return "not chosen"
    if failed_in(way, steps):
        return "failed"
    inside = [step for step in steps if step.scope[: len(way.scope)] == way.scope]
    mine = [n for n, step in enumerate(steps) if step.scope == way.scope]
    last = [n for n in mine if not any(n in step.needs for step in inside)]
    is_gathered = way.parent is not None and (not mine or any(n in way.made for n in last))
    return "done" if is_gathered or reaches(way, steps) else "filtered"


# --- both ---------------------------------------------------------------------------------------------------


def rows_of(folder: Path) -> list[Row]:
    """Status, outputs with the texts of files, the stage of the error, and the parts of each row of a run."""

    def texts(outputs: dict[str, Any]) -> dict[str, Any]:
        return {k: (folder / v).read_text() if k[0] == "f" else v for k, v in outputs.items()}

    found = []
    for line in (folder / "results.jsonl").read_text().splitlines():
        row = json.loads(line)
        parts = [
            [one["id"], one["status"], texts(one["outputs"]), one["error"] and one["error"]["stage"]]
            for one in row.get("parts", [])
        ]
        found.append((row["status"], texts(row["outputs"]), row["error"] and row["error"]["stage"], parts))
    return found


def write_graph(folder: Path, steps: list[Step], rows: list[dict], *, copies: bool = False) -> None:
    """Write the job; each stage has a class of its own, whose code may be edited."""
    classes = [
        f"class {step.name.upper()}({step.batch.get('base', 'Step')}):\n    version = {step.version}\n"
        for step in steps
    ]
    (folder / "stages.py").write_text(STAGES + "\n".join(classes))
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "job.yaml").write_text(yaml.safe_dump(document(steps, copies=copies)))


def edited(
    rng: random.Random, what: str, steps: list[Step], rows: list[dict]
) -> tuple[list[Step], list[dict], set[str], set[str]]:
    """A job with something changed: stages, rows, and the names of both of which results may be done anew."""
    steps, rows, names = copy.deepcopy(steps), copy.deepcopy(rows), {step.name for step in steps}
    number, row = rng.randrange(len(steps)), rng.choice(rows)
    if what in ("parameter", "code"):
        steps[number].fails += what == "parameter"
        steps[number].version += what == "code"
        after = {steps[n].name for n in range(len(steps)) if number in (n, *before(steps, n))}
        return steps, rows, after, {one["id"] for one in rows}
    if what == "column":
        row["column"] += 1
        return steps, rows, names, {row["id"]}
    if what == "item":
        rows.insert(0, {"id": f"new{len(rows)}", "column": 5})
        return steps, rows, names, {rows[0]["id"]}
    rows.reverse()
    del rows[: what == "fewer" and len(rows) > 1]
    return steps, rows, set(), set()
