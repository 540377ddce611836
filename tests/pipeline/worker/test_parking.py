"""Tests parking: which models are kept in host memory, and through a StageHost that swaps them."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.pipeline.dispatch.device_group import LoadStage
from evenload.pipeline.dispatch.dispatcher import GroupScheduler
from evenload.pipeline.dispatch.item_flow import StageTask
from evenload.pipeline.dispatch.worker_protocol import LOAD, RUN, HostSpec, Order, OrderOutcome, TaskInputs
from evenload.pipeline.plan import Fit, Phase, Unit
from evenload.pipeline.stage import Item, StageSetup
from evenload.pipeline.target import CodeTarget
from evenload.pipeline.worker.parking import HostCopy, ParkableModel, stages_to_park, unpark_s
from evenload.pipeline.worker.stage_host import StageHost

GIB = 2**30


def test_what_is_wanted_next_is_parked_as_far_as_there_is_room() -> None:
    models = [ParkableModel(stage, 10 * GIB, 20.0) for stage in range(3)]
    assert stages_to_park(models, (2, 0, 1), 25 * GIB, 100 * GIB) == (2, 0)
    assert stages_to_park(models, (2, 0, 1), 100 * GIB, 15 * GIB) == (2,)
    assert stages_to_park(models, (), 100 * GIB, 100 * GIB) == ()
    assert stages_to_park(models, (2,), 100 * GIB, -1) == ()


def test_a_model_that_loads_as_fast_as_it_comes_back_is_dropped() -> None:
    quick = ParkableModel(0, 10 * GIB, 3.0)
    assert stages_to_park([quick], (0,), 99 * GIB, 99 * GIB) == ()
    there = ParkableModel(0, 10 * GIB, 3.0, is_parked=True)  # its copy is made already
    assert stages_to_park([there], (0,), 99 * GIB, 0) == (0,)
    on_cpu = ParkableModel(0, 10 * GIB, 0.1, is_moved=False)
    assert stages_to_park([on_cpu], (0,), 99 * GIB, 0) == (0,)
    assert (unpark_s(on_cpu), unpark_s(quick) > 1.0) == (0.0, True)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.floats(0, 100), st.booleans(), st.booleans()), max_size=6),
    st.permutations(range(6)), st.integers(0, 120), st.integers(-10, 120),
)  # fmt: skip
def test_no_budget_is_exceeded(models, later, budget, free) -> None:
    known = [
        ParkableModel(at, size * GIB, load_s, parked, moved)
        for at, (size, load_s, parked, moved) in enumerate(models)
    ]
    chosen = [known[stage] for stage in stages_to_park(known, later, budget * GIB, free * GIB)]
    assert sum(model.n_bytes for model in chosen) <= budget * GIB
    new = sum(model.n_bytes for model in chosen if model.is_moved and not model.is_parked)
    assert new <= max(0, free) * GIB
    assert all(model.load_s > unpark_s(model) for model in chosen)


STAGES = """
class Counted:
    built, closed = 0, 0
    def __init__(self, context, *, by):
        Counted.built += 1
        self.by, self.n = by, 0
    def __call__(self, inputs, item):
        self.n += 1
        return {"n": self.n, "built": Counted.built, "closed": Counted.closed}
    def close(self):
        Counted.closed += 1
"""


def host(folder: Path, park_bytes: int) -> StageHost:
    (folder / "counted.py").write_text(STAGES)
    target = CodeTarget("counted", "Counted", folder / "counted.py")
    stages = tuple(StageSetup(name, target, folder, folder / "run", {"by": 1}) for name in ("one", "two"))
    return StageHost(HostSpec(stages, 1, park_bytes), SimpleNamespace(id="cpu:0", torch="cpu"))


def load(on: StageHost, stage: int, later: tuple[int, ...] = ()) -> OrderOutcome:
    (outcome,) = on(Order(LOAD, stage, later=later))
    assert outcome.kind == "loaded", outcome.error
    return outcome


def run(on: StageHost, stage: int) -> dict:
    (outcome,) = on(Order(RUN, stage, inputs=(TaskInputs(StageTask(stage, 0), {}, Item(0, "a")),)))
    return outcome.outputs


def test_a_parked_stage_comes_back_with_all_that_it_was(tmp_path: Path) -> None:
    there = host(tmp_path, 1000 * GIB)
    assert load(there, 0).how == "read"
    run(there, 0)
    away = load(there, 1, later=(0,))
    assert (away.how, away.parked) == ("read", {0: 0.0})
    back = load(there, 0)
    assert (back.how, back.parked) == ("unparked", {})
    assert run(there, 0) == {"n": 2, "built": 2, "closed": 1}
    there.close()


@pytest.mark.parametrize(("park_bytes", "later"), [(0, (0,)), (1000 * GIB, ())])
def test_without_budget_or_need_it_is_dropped(tmp_path: Path, park_bytes: int, later: tuple) -> None:
    there = host(tmp_path, park_bytes)
    load(there, 0)
    run(there, 0)
    assert load(there, 1, later=later).parked == {}
    assert load(there, 0).how == "read"
    assert run(there, 0)["n"] == 1
    there.close()


def test_another_fit_of_a_parked_stage_is_built_anew(tmp_path: Path) -> None:
    there = host(tmp_path, 1000 * GIB)
    load(there, 0)
    load(there, 1, later=(0,))
    (outcome,) = there(Order(LOAD, 0, Fit("fp8")))
    assert (outcome.how, outcome.parked) == ("read", {})
    assert run(there, 0)["closed"] == 2
    there.close()


def test_weights_are_found_wherever_a_stage_keeps_them_and_counted_once() -> None:
    torch = pytest.importorskip("torch")
    shared = torch.nn.Linear(10, 20)
    pipe = SimpleNamespace(components={"a": shared, "b": torch.nn.BatchNorm1d(5), "name": "x"})
    copy = HostCopy(SimpleNamespace(pipe=pipe, model=shared, other=3))
    assert copy.n_bytes == 4 * (10 * 20 + 20 + 4 * 5) + 8
    assert not copy.park()  # they are in host memory
    copy.unpark()


def test_the_dispatcher_says_what_is_wanted_again_and_knows_what_comes_back_quickly() -> None:
    edits = Phase((Unit(("d0",), "edit", limit=1), Unit(("d1",), "edit")), ("edit",))
    dispatcher = GroupScheduler(
        (edits, Phase((Unit(("d0",), "score"),), ("score",))),
        ("edit", "score"),
        item_s={0: 1.0, 1: 1.0},
        load_s={0: 100.0, 1: 1.0},
    )
    for group in ("d0", "d1"):
        dispatcher.up(group)
        dispatcher.loaded(group, 0, Fit())
    dispatcher.add([StageTask(0, at) for at in range(10)])
    dispatcher.groups["d0"].n_taken[0] = 1
    (action,) = [one for one in dispatcher.decide(0.0) if one.group == "d0"]
    assert isinstance(action, LoadStage)
    assert (action.stage, action.later) == (1, (0,))
    dispatcher.answered("d0", 0.0)
    dispatcher.loaded("d0", 1, Fit(), 1.0, {0: 0.5})
    # More than its share, and d1 does it: it would only be exchanged for the scores again.
    assert not [one for one in dispatcher.decide(2.0) if one.group == "d0"]
    dispatcher.drain("d1")
    (back,) = [one for one in dispatcher.decide(3.0) if one.group == "d0"]
    assert isinstance(back, LoadStage)
    assert back.stage == 0  # no scores yet, and plenty of edits


def test_a_gpu_gives_its_memory_back_and_gets_the_same_weights(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    module = torch.nn.Linear(8192, 8192, bias=False, device="cuda").requires_grad_(False)
    given = torch.randn(4, 8192, device="cuda")
    expected = module(given)
    before = torch.cuda.memory_allocated()
    copy = HostCopy(SimpleNamespace(module=module))
    for _ in range(2):
        assert copy.park()
        torch.cuda.empty_cache()
        assert torch.cuda.memory_allocated() <= before - 8192 * 8192 * 4 + (1 << 20)
        copy.unpark()
        assert torch.equal(module(given), expected)
