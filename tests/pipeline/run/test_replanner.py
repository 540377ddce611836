"""A run that does not go as planned is planned again, told, and goes on with what it has."""

import json
import random
from pathlib import Path

from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline.written_jobs import write_job

from evenload.events import Event, EventLog, Note, Replanned, read_events
from evenload.pipeline import Pipeline
from evenload.pipeline.dispatch.device_group import RunTasks
from evenload.pipeline.dispatch.dispatcher import GroupScheduler
from evenload.pipeline.dispatch.hang_watch import EndWorker
from evenload.pipeline.dispatch.item_flow import ItemFlow, StageRule
from evenload.pipeline.plan import Fit
from evenload.pipeline.planning.planner import make_plan
from evenload.pipeline.problem import PlanDevice, PlanStage, Problem, Weights
from evenload.pipeline.run.replanner import Replanner
from evenload.pipeline.stage import Item

NAMES = ("edit", "score")
GIB = 2**30


class Voyage:
    """A run in the middle, with a clock of its own."""

    def __init__(
        self, mode: str = "auto", sources: dict[str, str] | None = None, problem: Problem | None = None
    ):
        stages = (PlanStage("edit", 5.0, 20.0), PlanStage("score", 3.4, 15.0))
        self.problem = problem or Problem(stages, tuple(PlanDevice(f"d{n}") for n in range(4)), 100)
        self.plan = make_plan(self.problem, mode)
        items = [(Item(n, str(n)), {}) for n in range(self.problem.n_items)]
        self.flow = ItemFlow([StageRule(name) for name in NAMES], items)
        self.dispatcher = GroupScheduler(self.plan.phases, NAMES)
        self.dispatcher.add(self.flow.begin())
        self.now, self.events = 0.0, list[Event]()
        self.there = [device.id for device in self.problem.devices]
        self.replanner = Replanner(
            self.problem, self.plan, "auto", self.dispatcher, self.flow, EventLog(self.events.append),
            sources=sources or dict.fromkeys(NAMES, "given"), devices=lambda: self.there,
            describe=lambda device: PlanDevice(device, free_bytes=8 * GIB), load_s=lambda: {},
            clock=lambda: self.now,
        )  # fmt: skip

    def look(self, after_s: float = 60.0) -> None:
        """As in the run's loop, until what is thought about is there."""
        self.now += after_s
        self.replanner.look()
        self.replanner.close()
        self.replanner.look()

    def work(self, group: str, stage: int, n: int, seconds: float) -> None:
        """``group`` did ``n`` items."""
        self.dispatcher.up(group)
        self.dispatcher.loaded(group, stage, Fit())
        for _ in range(n):
            task = min(list(self.dispatcher.waiting[stage]))
            self.dispatcher.withdraw({task.strand})
            self.dispatcher.ended(group, task, seconds)
            self.dispatcher.go_on(self.flow.done(task, {}))


def test_a_device_that_is_slow_gets_another_part_in_the_plan() -> None:
    voyage = Voyage("swap")
    for device in ("d0", "d1"):
        voyage.work(device, 0, 5, 5.0)
    voyage.work("d2", 0, 1, 40.0)
    assigned = list(voyage.dispatcher.groups["d2"].assignments)
    voyage.look()
    (event,) = [event for event in voyage.events if isinstance(event, Replanned)]
    assert "d2 is 0." in event.why
    assert event.before_s is not None
    assert event.after_s < 0.97 * event.before_s
    assert voyage.dispatcher.groups["d2"].assignments != assigned
    assert voyage.replanner.made[0]["why"] == event.why
    assert any(isinstance(note, Note) and "planned again" in note.text for note in voyage.events)
    voyage.look()
    assert voyage.replanner.n_considered == 1  # once said, it is no news


def test_a_device_joins_and_one_leaves() -> None:
    voyage = Voyage()
    voyage.dispatcher.join("new")
    voyage.there.append("new")
    voyage.look()
    (event,) = [event for event in voyage.events if isinstance(event, Replanned)]
    assert event.why == "new joined"
    assert any(not assignment.is_help for assignment in voyage.dispatcher.groups["new"].assignments)
    for device in ("d0", "d1", "d2"):
        voyage.dispatcher.drain(device)
        voyage.there.remove(device)
    voyage.look()
    assert voyage.replanner.n_considered == 2
    planned = [g.id for g in voyage.dispatcher.groups.values() if any(not p.is_help for p in g.assignments)]
    assert set(planned) >= {"new", "d3"} or len(voyage.replanner.made) == 1


def test_the_last_tasks_of_a_stage_have_a_place_when_their_worker_ends() -> None:
    """A plan counts what runs as done, and leaves its stage out: what hangs or dies there comes back."""
    voyage = Voyage("swap")
    for device, n in (("d0", 33), ("d1", 33), ("d2", 33)):
        voyage.work(device, 0, n, 5.0)
    (task,) = list(voyage.dispatcher.waiting[0])
    voyage.dispatcher.withdraw({task.strand})
    voyage.dispatcher.up("d3")
    voyage.dispatcher.groups["d3"].take(RunTasks("d3", (task,), "next in line"))
    voyage.dispatcher.groups["d3"].send(voyage.now)
    voyage.there.remove("d0")
    voyage.dispatcher.drain("d0")
    voyage.look(1.0)
    assert not list(voyage.dispatcher.waiting[0])
    assert len(voyage.replanner.made) == 1
    voyage.dispatcher.end_slow("d3", EndWorker("d3", "was killed", alone=(task,)))
    assert list(voyage.dispatcher.waiting[0]) == [task]
    assert voyage.dispatcher.why_stuck() is None


def test_times_that_nobody_knew_are_used_once_they_are_known() -> None:
    voyage = Voyage("swap", dict.fromkeys(NAMES, "unknown"))
    voyage.work("d0", 0, 12, 5.0)
    voyage.look()
    assert voyage.replanner.n_considered == 0
    voyage.work("d1", 1, 3, 30.0)
    voyage.look()
    assert voyage.replanner.n_considered == 1
    assert all("known" in event.why for event in voyage.events if isinstance(event, Replanned))


@settings(max_examples=examples(30), deadline=None)
@given(
    speeds=st.lists(st.sampled_from([1.0, 0.9, 0.3]), min_size=2, max_size=6),
    n_items=st.sampled_from([1, 10, 80]),
    dice=st.randoms(use_true_random=False),
)
def test_who_stands_still_finds_the_devices_that_are_left(
    speeds: list[float], n_items: int, dice: random.Random
) -> None:
    """`score` needs two devices at once, or more. Groups refuse it; others join, also during a search."""
    score = PlanStage("score", 3.4, 15.0, Weights(GIB // 4, GIB, 10), GIB // 8, fits=("layer_split",))
    devices = tuple(PlanDevice(f"d{n}", speed, 8 * GIB) for n, speed in enumerate(speeds))
    voyage = Voyage(problem=Problem((PlanStage("edit", 5.0, 20.0), score), devices, n_items))
    group = next(g for g in voyage.dispatcher.groups.values() if len(g.devices) == 1)
    voyage.work(group.id, 0, n_items, 5.0)
    left, refused = set(voyage.there), set[str]()
    while True:
        able = [
            group
            for group in voyage.dispatcher.groups.values()
            if 1 not in group.refused and any(one.stage == 1 for one in group.assignments)
        ]
        if able:
            refusing = dice.choice(able)
            assert len(refusing.devices) >= 2
            assert left.issuperset(refusing.devices)
            voyage.dispatcher.refused(refusing.id, 1, "no memory")
            refused.add(refusing.id)
            left.difference_update(refusing.devices)
            continue
        stuck = voyage.dispatcher.why_stuck()
        assert stuck is not None
        assert refused <= stuck[1].keys()
        n_made, n_joins = len(voyage.replanner.made), len(voyage.there) - len(speeds)
        assert voyage.replanner.seeks("nobody can")
        for new in [f"new{n_joins + n}" for n in range(dice.randrange(3) if n_joins < 4 else 0)]:
            voyage.dispatcher.join(new)
            voyage.there.append(new)
            left.add(new)
        voyage.look(0.0)
        while voyage.replanner.seeks("nobody can"):
            voyage.look(0.0)
        if len(left) < 2:
            break
        assert len(voyage.replanner.made) > n_made
    assert not voyage.replanner.seeks("nobody can")  # it has been searched for


STAGES = """
import time

class Wait:
    def __init__(self, context, *, seconds, load_s, name):
        time.sleep(load_s)
        self.seconds, self.name = seconds, name
    def __call__(self, inputs, item):
        time.sleep(self.seconds)
        return {self.name: item.seed}
"""


def test_a_run_whose_times_were_guessed_wrong(tmp_path: Path) -> None:
    """The scorer takes twenty times what the job says: more devices get it than were meant to."""
    stage = "{name: NAME, target: 'stages.py:Wait', params: {seconds: ITEM, load_s: 0.3, name: NAME}, "
    stage += "outputs: {NAME: number}, estimate: {item_s: GUESS, load_s: 0.3}}"
    edit = stage.replace("NAME", "edit").replace("ITEM", "0.1").replace("GUESS", "0.1")
    score = stage.replace("NAME", "score").replace("ITEM", "0.4").replace("GUESS", "0.02")
    job = write_job(tmp_path, STAGES, f"  - {edit}\n  - {score}\n", 30, devices="cpu*3")
    result = Pipeline.from_yaml(job).run(out=tmp_path / "run")
    assert result.n_done == 30
    events = list(read_events(tmp_path / "run"))
    told = [event for event in events if isinstance(event, Replanned)]
    notes = [event for event in events if isinstance(event, Note) and "planned again" in event.text]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert [one["why"] for one in summary["measured"]["replans"]] == [event.why for event in told]
    assert len(notes) == len(told)
    assert told
    assert all(event.before_s is None or event.after_s < event.before_s for event in told)


DIES = """
import os

class Edit:
    def __call__(self, inputs, item):
        return {"edit": item.seed}

class Score:
    def __init__(self, context):
        if context.device.id in ("cpu:2", "cpu:3"):
            os._exit(9)
        self.n_devices = context.n_devices
    def __call__(self, inputs, item):
        return {"score": self.n_devices}
"""


def test_a_split_model_whose_devices_fail_goes_to_those_that_have_nothing_to_do(tmp_path: Path) -> None:
    tensors = {
        f"layers.{at}.w": {"dtype": "F32", "shape": [4], "data_offsets": [16 * at, 16 * at + 16]}
        for at in range(8)
    }
    header = json.dumps(tensors).encode()
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text('{"architectures": ["X"]}')
    (tmp_path / "model/model.safetensors").write_bytes(
        len(header).to_bytes(8, "little") + header + bytes(128)
    )
    stages = (
        "  - {name: edit, target: 'stages.py:Edit', outputs: {edit: number},\n"
        "     estimate: {item_s: 0.05, load_s: 0.1}}\n"
        "  - {name: score, target: 'stages.py:Score', outputs: {score: number}, fit: [layer_split],\n"
        "     model: {path: model}, estimate: {item_s: 0.05, load_s: 0.1}}\n"
    )
    result = Pipeline.from_yaml(write_job(tmp_path, DIES, stages, devices="cpu*4")).run(out=tmp_path / "run")
    assert [item.outputs["score"] for item in result] == [2] * 6
