"""Tests that a job edited again and again in one folder gives what it gives in an empty one, with less work.

Random jobs of cheap stages, random edits: parameters, code of the stage and of what it imports, files,
inputs, seeds, samples, stages that come, go and change places. Runs are broken off,
and folders share a cache.
"""

import json
import random
import shutil
import sys
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from evenload.pipeline import Pipeline, PipelineResult

STAGE = """
class {name}:
    def __init__(self, context, *, k=0, weights=None):
        self.parts = ["{name}", {version}, k]
        if weights: self.parts.append(context.path(weights).read_text())
        if {reads_job_seed}: self.parts.append(context.seed)
    def __call__(self, inputs, item):
        parts = [*self.parts, {expression}]
        digest = note("{name} {code}", object.__getattribute__(item, "id"), parts)
        return {{"{output}": digest, "{output}_n": len(str(parts))}}
"""
MODULE = """
import hashlib
from pathlib import Path
from {helper} import {helped}
HERE = Path(__file__).parent
STOP_AFTER = HERE / "stop_after"

def note(name, item, parts):
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:12]
    with (HERE / "calls").open("a") as calls:
        calls.write(f"{{name}} {{item}} {{digest}}\\n")
    if STOP_AFTER.exists():
        left = int(STOP_AFTER.read_text()) - 1
        STOP_AFTER.write_text(str(left))
        if left <= 0:
            STOP_AFTER.unlink()
            raise KeyboardInterrupt
    return digest
"""
HELPED = "def help_{name}(value): return (value, {version})\n"
READS = ("item.seed", "item.index", "item.id", "inputs['a']", "inputs.get('b')", "list(inputs)", "1")
OF_ALL = ("helper", "add_stage", "drop_stage")  # edits of the file that all stages import


@dataclass
class StageText:
    """A stage of a random job, as far as it may be edited."""

    name: str
    reads: list[str]
    version: int = 0
    k: int = 0
    helper_version: int = 0
    weights: bool = False
    is_file: bool = False
    reads_job_seed: bool = False
    samples: int = 1
    when: bool = False


@dataclass
class RandomJob:
    """A job in a folder, which can be edited and run."""

    folder: Path
    rng: random.Random
    stages: list[StageText] = field(default_factory=list)
    items: dict[str, int] = field(default_factory=dict)
    seed: int = 0
    n_made: int = 0
    weights: int = 0

    def __post_init__(self) -> None:
        for _ in range(self.rng.randint(1, 3)):
            self.add_stage()
        self.items = {f"i{n}": n for n in range(self.rng.randint(1, 4))}

    def add_stage(self) -> None:
        self.n_made += 1
        at = self.rng.randint(0, len(self.stages))
        reads = self.rng.sample(READS, self.rng.randint(0, 2))
        if at and self.rng.random() < 0.8:
            before = self.stages[self.rng.randrange(at)]
            name = f"'out_{before.name}'"
            reads.append(f"Path(inputs[{name}]).read_text()" if before.is_file else f"inputs[{name}]")
        stage = StageText(f"S{self.n_made}", reads, is_file=self.rng.random() < 0.4)
        stage.weights, stage.reads_job_seed = self.rng.random() < 0.3, self.rng.random() < 0.2
        self.stages.insert(at, stage)

    def edit(self) -> str:
        rng, stage = self.rng, self.rng.choice(self.stages)
        what = rng.choice(
            [
                "params",
                "code",
                "helper",
                "weights",
                "seed",
                "column",
                "order_of_items",
                "add_item",
                "drop_item",
                "add_stage",
                "drop_stage",
                "reads",
                "samples",
                "when",
                "touch",
            ]
        )
        if what == "params":
            stage.k += 1
        elif what == "code":
            stage.version += 1
        elif what == "helper":
            stage.helper_version += 1
        elif what == "weights":
            self.weights += 1
        elif what == "seed":
            self.seed += 1
        elif what == "column":
            self.items[rng.choice(list(self.items))] += 100
        elif what == "order_of_items":
            self.items = dict(sorted(self.items.items(), reverse=True))
        elif what == "add_item":
            self.items = {f"n{len(self.items)}": 5, **self.items}
        elif what == "drop_item" and len(self.items) > 1:
            del self.items[rng.choice(list(self.items))]
        elif what == "add_stage":
            self.add_stage()
        elif what == "drop_stage" and len(self.stages) > 1:
            self.drop(stage)
        elif what == "reads":
            stage.reads = [one for one in stage.reads if "out_" in one] + rng.sample(READS, 1)
        elif what == "samples":
            had = stage.samples
            for one in self.stages:
                one.samples = 1
            stage.samples = 1 + (had % 3)
        elif what == "when":
            stage.when = not stage.when
        return what

    def drop(self, stage: StageText) -> None:
        self.stages.remove(stage)
        for one in self.stages:
            one.reads = [read for read in one.reads if f"'out_{stage.name}'" not in read]

    def write(self) -> None:
        helper = f"helper_{abs(hash(str(self.folder)))}"
        module = MODULE.format(helper=helper, helped=", ".join(f"help_{one.name}" for one in self.stages))
        for one in self.stages:
            reads = ", ".join([*one.reads, f"help_{one.name}({one.k})"])
            module += STAGE.format(
                name=one.name, version=one.version, output=f"out_{one.name}", expression=reads,
                reads_job_seed=one.reads_job_seed, code=zlib.crc32(reads.encode()),
            )  # fmt: skip
        (self.folder / "stages.py").write_text(module)
        helped = [HELPED.format(name=one.name, version=one.helper_version) for one in self.stages]
        (self.folder / f"{helper}.py").write_text("".join(helped))
        (self.folder / "weights.bin").write_text(str(self.weights))
        rows = [{"id": name, "a": value} for name, value in self.items.items()]
        (self.folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        job = {"name": "random", "inputs": {"jsonl": "rows.jsonl"}, "seed": self.seed}
        stages = [self._section(one) for one in self.stages]
        report = {"html": False, "trace": False}
        text = {"version": 1, "job": job, "devices": "cpu*1", "stages": stages, "report": report}
        (self.folder / "job.yaml").write_text(json.dumps(text))

    def _section(self, stage: StageText) -> dict[str, Any]:
        section: dict[str, Any] = {"name": stage.name.lower(), "target": f"stages.py:{stage.name}"}
        section["params"] = {"k": stage.k} | ({"weights": "weights.bin"} if stage.weights else {})
        section["samples"] = stage.samples
        section["outputs"] = {f"out_{stage.name}": "txt"} if stage.is_file else {}
        return section | ({"when": "a >= 1"} if stage.when else {})

    def run(
        self, out: str, cache: Path | None = None, stop_after: int = 0
    ) -> tuple[PipelineResult, Counter[str]]:
        """Run the job as it is now; also returns what its stages have computed."""
        (self.folder / "calls").write_text("")
        if stop_after:
            (self.folder / "stop_after").write_text(str(stop_after))
        pipeline = Pipeline.from_yaml(self.folder / "job.yaml")
        result = pipeline.run(out=self.folder / out, backend="inline", cache=cache)
        (self.folder / "stop_after").unlink(missing_ok=True)
        return result, Counter((self.folder / "calls").read_text().splitlines())


def outcome_of(folder: Path) -> dict[str, bytes]:
    """The rows of a run, and the files that they name."""
    rows = (folder / "results.jsonl").read_bytes()
    found = {"results": rows}
    for text in rows.splitlines():
        row = json.loads(text)
        for one in (row, *row.get("samples", ())):
            for value in one["outputs"].values():
                if isinstance(value, str) and value.startswith("outputs/"):
                    found[value] = (folder / value).read_bytes()
    return found


def edit_and_compare(folder: Path, rng: random.Random, n_edits: int) -> None:
    """A job in one folder through ``n_edits`` edits, beside the same one in a new folder each time."""
    job = RandomJob(folder, rng)
    cache = folder / "cache" if rng.random() < 0.5 else None
    had: Counter[str] = Counter()
    said = []
    for at in range(n_edits):
        if at:
            said.append(job.edit())
        job.write()
        if rng.random() < 0.3:
            job.run("run", cache, stop_after=rng.randint(1, 4))
            had += Counter(dict.fromkeys(had, 10000))  # what a broken run has left is not counted
            broken = True
        else:
            broken = False
        result, computed = job.run("run", cache)
        clean, needed = job.run(f"clean{at}")
        assert outcome_of(result.folder) == outcome_of(clean.folder), said
        if not broken and not (said and said[-1] in OF_ALL):
            too_many = computed - (needed - had)
            assert not too_many, (said, too_many)
        again, more = job.run("run", cache)
        assert not more, (said, more)
        assert outcome_of(again.folder) == outcome_of(clean.folder)
        if cache is not None:
            other, more = job.run("other", cache)
            assert not more, (said, more)
            assert outcome_of(other.folder) == outcome_of(clean.folder)
            shutil.rmtree(folder / "other")
        shutil.rmtree(folder / f"clean{at}")
        had = needed


@pytest.fixture
def clean_imports():
    """Nothing of a job stays imported."""
    modules, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - modules:
        if name.startswith(("evenload_job:", "helper_")):
            del sys.modules[name]
    sys.path[:] = path


@pytest.mark.usefixtures("clean_imports")
@pytest.mark.parametrize("seed", range(4))
def test_random_edits_of_random_jobs(tmp_path: Path, seed: int) -> None:
    edit_and_compare(tmp_path, random.Random(seed), n_edits=3)


@pytest.mark.slow
@pytest.mark.usefixtures("clean_imports")
@pytest.mark.parametrize("seed", range(100, 200))
def test_many_random_edits_of_random_jobs(tmp_path: Path, seed: int) -> None:
    edit_and_compare(tmp_path, random.Random(seed), n_edits=12)


TIMED = """
import time
class Draw:
    def __init__(self, context, *, by=0): ...
    def __call__(self, inputs, item):
        time.sleep(0.002)
        return {"drawn": item.seed}
class Score:
    def __init__(self, context, *, by=0):
        self.by = by
    def __call__(self, inputs, item):
        time.sleep(0.002)
        return {"score": inputs["drawn"] + self.by}
"""


def test_what_is_kept_costs_nothing_in_the_plan_and_says_how_long_the_rest_takes(tmp_path: Path) -> None:
    (tmp_path / "timed_stages.py").write_text(TIMED)
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"id": "r{n}"}}\n' for n in range(6)))
    stages = [{"name": n, "target": f"timed_stages.py:{n.title()}"} for n in ("draw", "score")]
    job = {"name": "timed", "inputs": {"jsonl": "rows.jsonl"}}
    text = {"version": 1, "job": job, "devices": "cpu*1", "stages": stages}
    (tmp_path / "job.yaml").write_text(json.dumps(text | {"report": {"html": False, "trace": False}}))

    def plan_of(changes: list[str], out: str) -> dict[str, Any]:
        pipeline = Pipeline.from_yaml(tmp_path / "job.yaml", changes)
        result = pipeline.run(out=tmp_path / out, backend="inline", cache=tmp_path / "cache")
        assert result.n_done == 6
        return json.loads((tmp_path / out / "plan.json").read_text())

    first = plan_of([], "run")
    assert first["makespan_s"] is None, "nobody knows any times yet"
    for out in ("run", "other"):  # the run's own folder; a new one, which has only the cache
        again = plan_of([f"score.by={len(out)}"], out)
        planned = [unit["stage"] for phase in again["phases"] for unit in phase["units"]]
        assert set(planned) == {"score"}
        assert again["makespan_s"] is not None or out == "other"
    done_again = plan_of(["draw.by=1"], "run")
    planned = [unit["stage"] for phase in done_again["phases"] for unit in phase["units"]]
    assert set(planned) == {"draw", "score"}
    assert done_again["makespan_s"] is not None, "its seconds are known from the run before"


def test_a_stage_that_expands_from_now_on_is_done_again(tmp_path: Path) -> None:
    """The oracle is a run of the same job in an empty folder. What was kept is why its list was refused."""
    code = "class Split:\n    def __call__(self, inputs, item): return {'pages': [{'text': item.id}]}\n"
    (tmp_path / "stages.py").write_text(code)
    (tmp_path / "rows.jsonl").write_text('{"id": "a"}\n')
    stage = {"name": "split", "target": "stages.py:Split"}
    for more in ({}, {"expand": "pages"}):
        job = {"name": "split", "inputs": {"jsonl": "rows.jsonl"}}
        text = {"version": 1, "job": job, "devices": "cpu*1", "stages": [stage | more]}
        (tmp_path / "job.yaml").write_text(json.dumps(text | {"report": {"html": False, "trace": False}}))
        pipeline = Pipeline.from_yaml(tmp_path / "job.yaml")
        results = [pipeline.run(out=tmp_path / out, backend="inline") for out in ("run", f"empty{len(more)}")]
        assert [one.status for one in results] == ["done" if more else "failures"] * 2
    rows = [(result.folder / "results.jsonl").read_bytes() for result in results]
    assert rows[0] == rows[1]
