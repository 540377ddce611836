"""Random graphs of stages give what a plain loop gives, whatever fails, is filtered or is broken off."""

import copy
import hashlib
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from evenload.pipeline import Pipeline
from evenload.pipeline.seeds import item_seed

STAGES = """
import hashlib
from pathlib import Path
HERE = Path(__file__).parent
STOP_AFTER = HERE / "stop_after"

def digest(*parts):
    return int(hashlib.sha256(repr(parts).encode()).hexdigest()[:8], 16)

class Step:
    def __init__(self, context, *, name, fails=0):
        self.name, self.fails = name, fails
    def __call__(self, inputs, item):
        if STOP_AFTER.exists():
            left = int(STOP_AFTER.read_text()) - 1
            STOP_AFTER.write_text(str(left))
            if left <= 0:
                STOP_AFTER.unlink()
                raise KeyboardInterrupt
        with (HERE / "calls").open("a") as calls:
            calls.write(f"{self.name} {item.id} {item.seed}\\n")
        seen = {name: Path(value).read_text() if name[0] == "f" else value for name, value in inputs.items()}
        number = digest(self.name, sorted(seen.items()), item.id, item.seed)
        if self.fails and number % self.fails == 0:
            raise ValueError(f"{self.name} cannot do {number}")
        return {f"n_{self.name}": number % 1000, f"f_{self.name}": f"text {number}"}
"""


@dataclass
class Step:
    """One stage of a random job."""

    name: str
    needs: list[int]
    fails: int = 0
    when: tuple[str, int] | None = None
    samples: int = 1
    is_best: bool = False


def random_steps(rng: random.Random) -> list[Step]:
    """A graph of up to seven stages, some with conditions and failures; samples where nothing runs beside."""
    steps = []
    for number in range(rng.randint(2, 7)):
        needs = sorted(rng.sample(range(number), min(number, rng.choice([0, 1, 1, 1, 2, 3]))))
        steps.append(Step("abcdefg"[number], needs, rng.choice([0, 0, 0, 4, 9])))
        if needs and rng.random() < 0.3:
            steps[-1].when = (f"n_{steps[rng.choice(needs)].name}", rng.choice([200, 500, 800]))
    alone = [n for n in range(len(steps)) if all(n in before(steps, m) or m in before(steps, n) or m == n
                                                 for m in range(len(steps)))]  # fmt: skip
    if alone and rng.random() < 0.6:
        steps[rng.choice(alone)].samples = 3
        first = next(n for n, step in enumerate(steps) if step.samples > 1)
        if (later := [n for n in alone if n >= first]) and rng.random() < 0.8:
            steps[rng.choice(later)].is_best = True
    return steps


def before(steps: list[Step], number: int) -> set[int]:
    return set(steps[number].needs).union(*(before(steps, need) for need in steps[number].needs))


def document(steps: list[Step]) -> dict[str, Any]:
    stages = []
    for step in steps:
        stage: dict[str, Any] = {
            "name": step.name,
            "target": "stages.py:Step",
            "needs": [steps[need].name for need in step.needs],
            "params": {"name": step.name, "fails": step.fails},
            "outputs": {f"n_{step.name}": "number", f"f_{step.name}": "txt"},
        }
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
        "stages": stages,
        "errors": {"max_error_rate": 1.0},
        "report": {"html": False, "trace": False},
    }


# --- the twin: one item after the other, one stage after the other ------------------------------------------


@dataclass
class Way:
    """A sample of an item in the plain loop."""

    sample: int
    seed: int
    made: dict[int, dict[str, Any]] = field(default_factory=dict)
    closed: dict[int, str] = field(default_factory=dict)
    is_chosen: bool = True


def plain_item(steps: list[Step], row: dict[str, Any]) -> tuple[str, dict[str, Any], str | None]:
    """Status, outputs and the stage of the error of one item, done by itself."""
    ways = [Way(0, item_seed(3, row["id"]))]
    for number, step in enumerate(steps):
        if step.samples > 1 and all(need in ways[0].made for need in step.needs):
            passes = step.when is None or given(ways[0], steps, number, row)[step.when[0]] >= step.when[1]
            for sample in range(1, step.samples if passes else 1):
                ways.append(
                    Way(sample, item_seed(3, row["id"], sample), dict(ways[0].made), dict(ways[0].closed))
                )
        for way in (way for way in ways if way.is_chosen):
            take(way, steps, number, row)
        if step.is_best:
            through = [way for way in ways if number in way.made]
            ranked = sorted(through, key=lambda way: (-way.made[number][f"n_{step.name}"], way.sample))
            for way in ranked[1:]:
                way.is_chosen = False
    ends = {n for n in range(len(steps)) if not any(n in step.needs for step in steps)}
    fates = [fate(way, ends) for way in ways]
    order = ("done", "filtered", "failed", "not chosen")
    at = min(range(len(ways)), key=lambda n: (order.index(fates[n]), -len(ways[n].made), n))
    outputs = {name: value for n in sorted(ways[at].made) for name, value in ways[at].made[n].items()}
    failed = [n for n, why in sorted(ways[at].closed.items()) if why == "failed"]
    return fates[at], outputs, steps[failed[0]].name if failed else None


def given(way: Way, steps: list[Step], number: int, row: dict[str, Any]) -> dict[str, Any]:
    made = {name: value for n in before(steps, number) for name, value in way.made.get(n, {}).items()}
    return {name: value for name, value in row.items() if name != "id"} | made


def take(way: Way, steps: list[Step], number: int, row: dict[str, Any]) -> None:
    step = steps[number]
    values = given(way, steps, number, row)
    if any(need in way.closed for need in step.needs):
        way.closed[number] = "shut"
    elif step.when and values[step.when[0]] < step.when[1]:
        way.closed[number] = "filtered"
    else:
        text = repr((step.name, sorted(values.items()), row["id"], way.seed))
        found = int(hashlib.sha256(text.encode()).hexdigest()[:8], 16)
        if step.fails and found % step.fails == 0:
            way.closed[number] = "failed"
        else:
            way.made[number] = {f"n_{step.name}": found % 1000, f"f_{step.name}": f"text {found}"}


def fate(way: Way, ends: set[int]) -> str:
    if not way.is_chosen:
        return "not chosen"
    if "failed" in way.closed.values():
        return "failed"
    return "done" if ends & way.made.keys() else "filtered"


# --- both ---------------------------------------------------------------------------------------------------


def rows_of(folder: Path) -> list[tuple[str, dict[str, Any], str | None]]:
    """Status, outputs with the texts of files, and the stage of the error, of each row of a run."""
    found = []
    for line in (folder / "results.jsonl").read_text().splitlines():
        row = json.loads(line)
        outputs = {k: (folder / v).read_text() if k[0] == "f" else v for k, v in row["outputs"].items()}
        found.append((row["status"], outputs, row["error"] and row["error"]["stage"]))
    return found


def write_job(folder: Path, steps: list[Step], n_items: int) -> list[dict[str, Any]]:
    rows = [{"id": f"r{n}", "column": n * n} for n in range(n_items)]
    (folder / "stages.py").write_text(STAGES)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "job.yaml").write_text(yaml.safe_dump(document(steps)))
    return rows


def check_a_graph(folder: Path, seed: int, n_items: int, n_stops: int) -> None:
    rng = random.Random(seed)
    steps = random_steps(rng)
    rows = write_job(folder, steps, n_items)
    wanted = [plain_item(steps, row) for row in rows]
    for _ in range(n_stops):
        (folder / "stop_after").write_text(str(rng.randint(1, 3 * n_items)))
        Pipeline.from_yaml(folder / "job.yaml").run(out=folder / "run", backend="inline")
    (folder / "stop_after").unlink(missing_ok=True)
    Pipeline.from_yaml(folder / "job.yaml").run(out=folder / "run", backend="inline")
    assert rows_of(folder / "run") == wanted, yaml.safe_dump(document(steps))
    (folder / "calls").write_text("")
    Pipeline.from_yaml(folder / "job.yaml").run(out=folder / "run", backend="inline")
    assert (folder / "calls").read_text() == ""  # all of it is known
    check_an_edit(folder, rng, steps, rows)


def check_an_edit(folder: Path, rng: random.Random, steps: list[Step], rows: list[dict[str, Any]]) -> None:
    """Another parameter of one stage has only that one done again, and those that need it."""
    edited = rng.randrange(len(steps))
    (folder / "calls").unlink()
    again = copy.deepcopy(steps)
    again[edited].fails = 7
    (folder / "job.yaml").write_text(yaml.safe_dump(document(again)))
    said = Pipeline.from_yaml(folder / "job.yaml").plan(out=folder / "run")
    to_do = {one["stage"]: one["n_to_do"] for one in said.kept}
    after = {steps[n].name for n in range(len(steps)) if edited in before(steps, n)} | {steps[edited].name}
    assert {name for name, n in to_do.items() if n} <= after
    Pipeline.from_yaml(folder / "job.yaml").run(out=folder / "run", backend="inline")
    assert rows_of(folder / "run") == [plain_item(again, row) for row in rows]
    calls = (folder / "calls").read_text().splitlines() if (folder / "calls").exists() else []
    assert {call.split()[0] for call in calls} <= after


@pytest.mark.parametrize("seed", range(6))
def test_a_random_graph_gives_what_a_plain_loop_gives(tmp_path: Path, seed: int) -> None:
    check_a_graph(tmp_path, seed, n_items=5, n_stops=2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 200))
def test_many_random_graphs(tmp_path: Path, seed: int) -> None:
    check_a_graph(tmp_path, seed, n_items=12, n_stops=4)
