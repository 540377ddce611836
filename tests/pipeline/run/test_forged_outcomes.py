"""Answers of stage workers with one field changed: they cost that worker, never the run."""

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest
from forged_outcomes import PIECE, TASKS, forged
from pipeline.written_jobs import write_job

from evenload.executor.task.answer import Answer
from evenload.pipeline import Pipeline
from evenload.pipeline.dispatch.device_group import DeviceGroup
from evenload.pipeline.dispatch.item_flow import StageTask
from evenload.pipeline.dispatch.worker_protocol import (
    GIVE,
    KEYS,
    LOAD,
    LOOK,
    RUN,
    WAIT,
    Order,
    OrderOutcome,
    TaskInputs,
)
from evenload.pipeline.run.outcome_check import OutcomeCheck, bound_times
from evenload.pipeline.site import SiteReport
from evenload.pipeline.stage import Item, StageSetup
from evenload.pipeline.target import CodeTarget


def setup(name: str) -> StageSetup:
    outputs = {"drawn": "png"} if name == "draw" else {}
    return StageSetup(name, CodeTarget("m", "C", None), Path(), Path(), outputs=outputs)


def place_of(task: StageTask, output: str) -> str | None:
    return f"outputs/draw/{task.strand}.png" if task.stage == 0 and output == "drawn" else None


def done(task: StageTask) -> OrderOutcome:
    outputs = {"drawn": place_of(task, "drawn"), "n": 3} if task.stage == 0 else {"m": 0.5, "text": "ok"}
    files = {"drawn": [3, "0" * 32]} if task.stage == 0 else {}
    return OrderOutcome("done", task.stage, task, outputs, files, ("n",), start_s=1.0, stop_s=2.0)


def holding(running=(), saving=(), has_lanes: bool = False) -> DeviceGroup:
    lanes = {0, 1} if has_lanes else set()
    return DeviceGroup(
        "d0", ("d0",), running=dict.fromkeys(running, 0.0), saving=set(saving), with_lanes=lanes
    )


def inputs(task: StageTask) -> TaskInputs:
    return TaskInputs(task, {}, Item(task.strand, "x", 0, None))


GOOD: list[tuple[Order, DeviceGroup, list[OrderOutcome]]] = [
    (Order(LOAD, 1), holding(), [OrderOutcome("loaded", 1, parked={0: 0.5}, how="unparked", peak_bytes=9)]),
    (Order(LOAD, 1), holding(), [OrderOutcome("memory", 1, error=("E", "no", ""))]),
    (Order(RUN, 0, inputs=(inputs(TASKS[0]),)), holding(TASKS[:1]), [done(TASKS[0])]),
    (
        Order(RUN, 0, inputs=(inputs(TASKS[0]), inputs(TASKS[1]))),
        holding(TASKS[:2]),
        [OrderOutcome("made", 0, TASKS[0], how="equal, 1.5x as fast"), done(TASKS[1]), done(TASKS[0])],
    ),
    (Order(RUN, 1, inputs=(inputs(TASKS[2]),)), holding(TASKS[2:], TASKS[:1], True), [done(TASKS[0])]),
    (Order(WAIT), holding((), TASKS[:1]), [OrderOutcome("failed", 0, TASKS[0], error=("E", "x", "tb"))]),
    (Order(WAIT), holding(TASKS), []),
    (
        Order(KEYS, 0, inputs=(inputs(TASKS[0]), inputs(TASKS[1]))),
        holding(TASKS[:2]),
        [
            OrderOutcome("keyed", 0, TASKS[0], key="[3,4]"),
            OrderOutcome("keyed", 0, TASKS[1], error=("E", "", "")),
        ],
    ),
]  # fmt: skip
REMOTE: list[tuple[Order, DeviceGroup, list[OrderOutcome]]] = [
    (Order(LOOK), holding(), [OrderOutcome("site", 0, site=SiteReport(lacks={1: ("a",)}))]),
    (Order(GIVE), holding(), [OrderOutcome("site", 0, site=SiteReport(has_run_folder=False))]),
    (Order(WAIT), holding(TASKS), [OrderOutcome("piece", 0, piece=PIECE)]),
    (Order(RUN, 1, inputs=(inputs(TASKS[2]),)), holding(TASKS[2:3]), [OrderOutcome("lacks", 1, TASKS[2])]),
]  # fmt: skip


def answer(values: list[Any]) -> Answer:
    return Answer(values, {}, 0.0, 1.0, 1.0)


def check(*, is_remote: bool) -> OutcomeCheck:
    return OutcomeCheck([setup("draw"), setup("weigh")], place_of, is_remote=is_remote)


def test_what_workers_say_is_believed() -> None:
    for order, held, outcomes in GOOD:
        for is_remote in (False, True):
            assert check(is_remote=is_remote).fault_of(answer([outcomes]), order, held) == ""
    for order, held, outcomes in REMOTE:
        assert check(is_remote=True).fault_of(answer([outcomes]), order, held) == ""
        assert check(is_remote=False).fault_of(answer([outcomes]), order, held)
    assert check(is_remote=False).fault_of(answer([None]), Order(RUN), holding())
    assert check(is_remote=False).fault_of(answer([]), Order(RUN), holding()) == ""


WRONG: dict[str, tuple[int, Any]] = {
    "an item that it was not given": (2, [done(TASKS[1])]),
    "the same item twice": (2, [done(TASKS[0]), done(TASKS[0])]),
    "less than it was told": (2, []),
    "another stage's item": (2, [dataclasses.replace(done(TASKS[0]), stage=1)]),
    "a load that nobody ordered": (2, [done(TASKS[0]), OrderOutcome("loaded", 0)]),
    "no load": (0, []),
    "a file elsewhere": (2, [dataclasses.replace(done(TASKS[0]), outputs={"drawn": "/etc/passwd"})]),
    "a file that is not said to be one": (2, [dataclasses.replace(done(TASKS[0]), files={})]),
    "an output less": (2, [dataclasses.replace(done(TASKS[0]), outputs={"n": 1}, files={})]),
    "a value that JSON cannot hold": (4, [dataclasses.replace(done(TASKS[2]), outputs={"m": {1}})]),
    "a text without end": (1, [OrderOutcome("memory", 1, error=("E", "x" * 10**6, ""))]),
    "memory that cannot be": (0, [OrderOutcome("loaded", 1, peak_bytes=-1)]),
    "a key that nobody asked for": (2, [OrderOutcome("keyed", 0, TASKS[0], key="a")]),
    "a key for one of two": (7, [OrderOutcome("keyed", 0, TASKS[0], key="a")]),
    "an outcome without fields": (0, [object.__new__(OrderOutcome)]),
}


@pytest.mark.parametrize("what", WRONG)
def test_it_is_seen_that_a_worker_sent(what: str) -> None:
    number, outcomes = WRONG[what]
    order, held, _ = GOOD[number]
    assert check(is_remote=False).fault_of(answer([outcomes]), order, held)


def test_any_field_may_be_forged() -> None:
    """What is believed all the same has the types of an answer, and names no file but the task's own."""
    rng = random.Random(3)
    n_found = 0
    for _ in range(4000):
        is_remote = rng.random() < 0.5
        order, held, outcomes = rng.choice([*GOOD, *REMOTE] if is_remote else GOOD)
        told = forged(rng, outcomes)
        fault = check(is_remote=is_remote).fault_of(answer([told]), order, held)
        assert isinstance(fault, str)
        n_found += bool(fault)
        for one in told if not fault else []:
            again = bound_times(one, 5.0)
            assert 0 <= again.start_s <= again.stop_s <= 65.0
            assert one.task is None or one.task in {*held.running, *held.saving}
            assert all(one.outputs[name] == place_of(one.task, name) for name in one.files)
            json.dumps([one.outputs, one.error], allow_nan=False)
    assert n_found > 2000


# --- over a real worker -----------------------------------------------------------------------------

STAGES = """
import random, sys
from pathlib import Path
import numpy as np
sys.path.insert(0, HERE)
from forged_outcomes import Bare, forged
from evenload.pipeline.dispatch.worker_protocol import OrderOutcome
from evenload.pipeline.worker.stage_host import StageHost
honest = StageHost.__call__

def forge(seed):
    rng = random.Random(seed)
    def answer(self, order):
        outcomes = honest(self, order)
        if rng.random() < 0.5:
            return outcomes
        return Bare(OrderOutcome) if rng.random() < 0.1 else forged(rng, outcomes)
    StageHost.__call__ = answer

class Draw:
    def __call__(self, inputs, item):
        if item.index in (1, 3) and not Path(f"{MARKS}/{item.index}-{SEED % 2}").exists():
            Path(f"{MARKS}/{item.index}-{SEED % 2}").touch()
            forge(SEED * 100 + item.index)
        return {"drawn": np.full((4, 4, 3), item.index, np.uint8), "n": item.index}

class Weigh:
    def __call__(self, inputs, item):
        return {"weight": 2 * inputs["n"]}
"""
JOB = """\
  - {name: draw, target: 'stages.py:Draw', outputs: {drawn: png}}
  - {name: weigh, target: 'stages.py:Weigh', outputs: {weight: number}}
"""
N_ITEMS = 6


@pytest.mark.parametrize("seed", range(2))
def test_a_real_worker_may_forge_what_it_answers(seed: int, tmp_path: Path) -> None:
    own = f"HERE, MARKS, SEED = {str(Path(__file__).parents[2])!r}, {str(tmp_path)!r}, {seed}\n"
    job = write_job(tmp_path, own + STAGES, JOB, N_ITEMS)
    result = Pipeline.from_yaml(job).run(devices="cpu*2", backend="process")
    assert result.status in ("done", "failures")
    assert len(result) == N_ITEMS
    for row in result:
        assert row.status in ("done", "failed"), row
        if row.status == "done" and "drawn" in row.outputs:
            assert row.outputs["drawn"] == f"outputs/draw/{row.id}.png"
    for line in (result.folder / "results.jsonl").read_text().splitlines():
        json.loads(line)
