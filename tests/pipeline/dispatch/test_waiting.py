"""Which tasks run together: of equal keys, no more than may, and none waits for longer than said."""

import random
from collections import Counter

from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline.dispatch.played_fleet import STAGES, Fleet, flow, phases_of_mode

from evenload.pipeline.dispatch.device_group import RunTasks
from evenload.pipeline.dispatch.dispatcher import GroupScheduler
from evenload.pipeline.dispatch.item_flow import StageTask
from evenload.pipeline.dispatch.waiting import BatchRule
from evenload.pipeline.plan import Fit, Phase, Unit

Key = tuple[str, str] | None


class Watched(Fleet):
    """A fleet whose every decision on stage 1 is held against the promises of batches, in the slow way.

    keys  task -> what must be equal in its batch; None: it runs alone
    """

    def __init__(self, dispatcher: GroupScheduler, n_items: int, rule: BatchRule, keys: dict, **more):
        super().__init__(dispatcher, flow(n_items), **more)
        self.rule, self.keys = rule, keys
        self.since: dict[StageTask, float] = {}
        self.sizes: list[int] = []
        self._decide = dispatcher.decide
        dispatcher.decide = self.decide  # type: ignore[method-assign]

    def decide(self, now: float, *, deals: bool = True):
        for task in list(self.dispatcher.waiting[1]):
            self.since.setdefault(task, now)
        may_grow = len(self.strands_in_stage_1()) < len(self.flow.items)
        actions = self._decide(now, deals=deals)
        for action in actions:
            if isinstance(action, RunTasks) and action.tasks[0].stage == 1 and not action.asks:
                self.check_batch(action, now, may_grow)
        self.check_nobody_waits(now)
        return actions

    def strands_in_stage_1(self) -> set[int]:
        """Those that have come to it, or never will."""
        groups = self.dispatcher.groups.values()
        with_workers = [task for group in groups for task in (*group.running, *group.saving)]
        over = [task for _, task, _ in self.ran]
        there = [*self.dispatcher.waiting, *with_workers, *over]
        return {task.strand for task in there if task.stage == 1} | {task.strand for task in self.given_up}

    def check_batch(self, action: RunTasks, now: float, may_grow: bool) -> None:
        keys = {self.keys[task] for task in action.tasks}
        assert len(keys) == 1, "a batch mixes keys"
        assert len(action.tasks) == len(set(action.tasks)) <= min(self.rule.most, action.most)
        assert action.key is not None or len(action.tasks) == 1
        self.sizes.append(len(action.tasks))
        began_s = min(self.since.pop(task) for task in action.tasks)
        is_due = now >= began_s + self.rule.max_wait_s - 1e-6
        is_whole = len(action.tasks) == action.most or action.key is None
        assert is_whole or is_due or not may_grow, "a batch begun too early"

    def check_nobody_waits(self, now: float) -> None:
        """While a worker with the stage is free, nobody has waited too long, and no batch is whole."""
        waiting = list(self.dispatcher.waiting[1])
        late = [t for t in waiting if self.since[t] + self.rule.max_wait_s < now - 1e-6]
        n_of_key = Counter(self.keys[task] for task in waiting)
        late += [task for task in waiting if self.keys[task] and n_of_key[self.keys[task]] >= self.rule.most]
        for group in self.dispatcher.groups.values():
            is_free = group.state == "up" and not group.is_ordered and not group.running
            assert not (late and is_free and 1 in group.resident), f"{late} wait at {now}"


@given(
    st.sampled_from(["single", "data_parallel", "swap", "stage_parallel"]), st.integers(1, 30),
    st.integers(1, 4), st.integers(0, 10**6), st.sampled_from([0.0, 0.0, 0.05]), st.sampled_from([2, 3, 8]),
    st.sampled_from([0.0, 0.5, 3.0, 50.0]), st.sampled_from(["none", "job", "class", "both"]),
)  # fmt: skip
@settings(deadline=None, max_examples=examples(150))
def test_batches_keep_their_promises_whatever_comes_when(
    mode, n_items, n_devices, seed, p_death, most, max_wait_s, who_says
) -> None:
    rng = random.Random(seed)
    devices = [f"d{at}" for at in range(max(n_devices, 2 if mode == "stage_parallel" else 1))]
    tasks = [StageTask(1, at) for at in range(n_items)]
    of_job = {task: rng.choice(["a", "b", "c", None]) for task in tasks} if who_says != "class" else {}
    of_job = of_job if who_says != "none" else {}
    of_class = {task: rng.choice(["1", "2", None]) for task in tasks} if who_says in ("class", "both") else {}
    pairs = {task: (of_job.get(task, ""), of_class.get(task, "")) for task in tasks}
    rule = BatchRule(most, max_wait_s, lambda task: of_job.get(task, ""))
    priority = [rng.choice([0.0, 1.0]) for _ in range(n_items)]
    dispatcher = GroupScheduler(
        phases_of_mode(mode, STAGES, devices), STAGES, batch={1: rule}, queue=rng.choice([2, 8]),
        policy="pull", priority_of=priority.__getitem__ if rng.random() < 0.3 else None,
    )  # fmt: skip
    played = Watched(
        dispatcher, n_items, rule, {task: None if None in pair else pair for task, pair in pairs.items()},
        rng=rng, p_death=p_death, load_s=rng.random(), class_keys=of_class, p_saving=rng.choice([0.0, 0.5]),
        item_s={device: rng.choice([0.2, 1.0, 2.0]) for device in devices},
    )  # fmt: skip
    if not played.ends(p_death):
        return
    ran = [task for _, task, _ in played.ran]
    assert len(ran) == len(set(ran))
    fates = [strand.fate for strand in played.flow.strands]
    assert fates.count("done") == n_items - len(played.given_up)
    assert p_death or not played.given_up


def test_a_halved_batch_is_whole_for_its_worker() -> None:
    units = (Unit(("d0",), "score"), Unit(("d1",), "edit"))
    dispatcher = GroupScheduler((Phase(units, STAGES),), STAGES, batch={1: BatchRule(4, 50.0)})
    dispatcher.up("d0")
    dispatcher.loaded("d0", 1, Fit())
    dispatcher.add([StageTask(0, 0), *(StageTask(1, at) for at in (1, 2, 3))])
    assert not [one for one in dispatcher.decide(0.0) if isinstance(one, RunTasks)]
    assert dispatcher.wake_s(0.0) == 50.0
    assert (dispatcher.n_ready(49.0), dispatcher.n_ready(50.0)) == (1, 4)
    assert dispatcher.out_of_memory("d0", StageTask(1, 4)) == "batches of 2"
    (action,) = (one for one in dispatcher.decide(1.0) if isinstance(one, RunTasks))
    assert action.tasks == (StageTask(1, 1), StageTask(1, 2))
