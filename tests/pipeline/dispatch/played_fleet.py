"""Workers that are played, with a clock of their own: what a dispatcher decides comes true."""

import heapq
import random
from collections.abc import Sequence
from typing import Any

from evenload.pipeline.dispatch.device_group import LoadStage, RunTasks, StartWorker, StopWorker
from evenload.pipeline.dispatch.dispatcher import GroupScheduler
from evenload.pipeline.dispatch.hang_watch import EndWorker
from evenload.pipeline.dispatch.item_flow import ItemFlow, StageRule, StageTask
from evenload.pipeline.dispatch.strand import ItemFailure
from evenload.pipeline.plan import Fit, Phase, Unit
from evenload.pipeline.stage import Item

STAGES = ("edit", "score")
POLICIES = (
    "measured", "pull", "pull:3", "guided", "factoring", "factoring:weighted", "static", "static:proportional"
)  # fmt: skip


class Fleet:
    """Plays workers: ``item_s`` by group, deaths at random; keeps who ran what when."""

    def __init__(
        self,
        dispatcher: GroupScheduler, flow: ItemFlow, *, item_s=None, rng=None, p_death=0.0, load_s: Any = 0.0,
        stage_s=None, p_saving=0.0, p_slow=0.0, plans=(), class_keys=None, parks=False, too_large=frozenset(),
        p_change=0.0,
    ):  # fmt: skip
        self.dispatcher, self.flow = dispatcher, flow
        self.item_s, self.rng = item_s or {}, rng or random.Random(0)
        self.p_death, self.stage_s = p_death, stage_s or {}
        self.p_saving, self.plans = p_saving, plans  # results that come later; plans that are changed to
        self.p_slow = p_slow  # tasks that are ended with their worker as they take long, and are run again
        self.saving: list[tuple[float, str, StageTask]] = []
        self.class_keys = class_keys or {}  # of tasks whose stage's class says their key
        self.parks = parks  # models that leave wait in host memory
        self.too_large = too_large  # (group, task) without memory for it
        self.p_change = p_change  # devices that leave, or join again
        self.gone: set[str] = set()
        self.load_s = load_s if isinstance(load_s, dict) else {0: load_s, 1: load_s, 2: load_s}
        self.now, self.busy = 0.0, {}
        self.ahead: dict[str, list[RunTasks]] = {}  # orders that a worker has behind the one it works at
        self.ran: list[tuple[str, StageTask, float]] = []
        self.loads: list[tuple[str, int]] = []
        self.given_up: list[StageTask] = []
        self.n_begun = 0  # workers started and models loaded since the last task was over

    def go(self) -> float:
        """Until nothing is open; returns the makespan."""
        self.dispatcher.add(self.flow.begin())
        for _ in range(100_000):
            if not self.flow.n_open:
                return self.now
            actions = self.dispatcher.decide(self.now)
            for action in actions:
                self._do(action)
            most = 40 * len(self.dispatcher.groups)
            assert self.n_begun <= most, "workers and models come and go for ever"
            if actions:
                continue
            wait_s, next_s = self.dispatcher.wake_s(self.now), self._next_s()
            if next_s is not None and (wait_s is None or next_s <= self.now + wait_s):
                self._next()
            else:
                assert wait_s is not None, f"stuck: {self.dispatcher.why_stuck()}"
                self.now += wait_s + 1e-9
        raise AssertionError("it does not end")

    def ends(self, may_stop: object) -> bool:
        """Play until nothing is open. False: no device can run what is left, as may be, and why is said."""
        try:
            self.go()
        except AssertionError as error:
            if "stuck" not in str(error) or not may_stop:
                raise
            stuck = self.dispatcher.why_stuck()
            assert stuck is not None
            assert stuck[1], "no device says why"
            return False  # a real run ends here
        return True

    def _seconds(self, group: str, stage: int) -> float:
        return self.item_s.get(group, 1.0) * self.stage_s.get(stage, 1.0)

    def _do(self, action) -> None:
        self.n_begun += isinstance(action, StartWorker | LoadStage)
        if isinstance(action, StartWorker):
            assert self.gone.isdisjoint(self.dispatcher.groups[action.group].devices), "a device that left"
            self.dispatcher.up(action.group)
        elif isinstance(action, StopWorker):
            assert action.group not in self.busy
            assert not any(group == action.group for _, group, _ in self.saving)
        elif isinstance(action, LoadStage):
            self.loads.append((action.group, action.stage))
            self.busy[action.group] = (self.now + self.load_s[action.stage], action)
        else:
            assert isinstance(action, RunTasks)
            if action.group not in self.busy:
                return self._begin(action)
            doing = self.busy[action.group][1]
            assert isinstance(doing, RunTasks), "an order behind a load"
            assert doing.tasks[0].stage == action.tasks[0].stage
            self.ahead.setdefault(action.group, []).append(action)
        return None

    def _begin(self, order: RunTasks) -> None:
        seconds = len(order.tasks) * self._seconds(order.group, order.tasks[0].stage)
        self.busy[order.group] = (self.now + (0.001 if order.asks else seconds), order)

    def _next_s(self) -> float | None:
        """When the next thing happens."""
        return min((end for end, *_ in (*self.busy.values(), *self.saving)), default=None)

    def _next(self) -> bool:
        """The next thing happens, if anything is under way."""
        ends = [(end, group) for group, (end, _) in self.busy.items()]
        if self.saving and (not ends or min(self.saving)[0] <= min(ends)[0]):
            self.now, group, task = min(self.saving)
            self.saving.remove((self.now, group, task))
            if self.dispatcher.ended(group, task):
                self._done(group, task)
            return True
        if not ends:
            return False
        end, group = min(ends)
        if self.rng.random() < self.p_change:
            self._change_devices()
            return True
        _, action = self.busy.pop(group)
        self.now = max(self.now, end)
        if self.plans and self.rng.random() < 0.1:
            self._follow(self.rng.choice(self.plans))
        if self.rng.random() < self.p_death:
            self._lose(group)
            return True
        running = tuple(self.dispatcher.running_on(group))
        if running and self.rng.random() < self.p_slow:
            self._forget(group)
            how = {self.rng.choice(["alone", "later"]): running}
            assert self.dispatcher.end_slow(group, EndWorker(group, "was killed", **how)) == ([], [])
            return True
        self.dispatcher.answered(group, self.now)
        if self.ahead.get(group):
            self._begin(self.ahead[group].pop(0))
        if isinstance(action, LoadStage):
            gives_keys = any(task.stage == action.stage for task in self.class_keys)
            seconds = self.load_s[action.stage]
            parked = dict.fromkeys(self._left_by(group, action.stage), seconds / 10) if self.parks else {}
            self.dispatcher.loaded(group, action.stage, action.fit, seconds, parked, gives_keys=gives_keys)
            return True
        if action.asks:
            for task in action.tasks:
                self.dispatcher.keyed(group, task, self.class_keys[task])
            return True
        for task in action.tasks:
            seconds = self._seconds(group, task.stage)
            if (group, task) in self.too_large:
                tried = self.dispatcher.out_of_memory(group, task)
                if tried is None and self.dispatcher.ended(group, task, is_done=False):
                    self._give_up(task, "OutOfMemory")
            elif self.rng.random() < self.p_saving:
                self.dispatcher.made(group, task, seconds)
                self.saving.append((self.now + self.rng.random(), group, task))
            elif self.dispatcher.ended(group, task, seconds):
                self._done(group, task)
        return True

    def _forget(self, group: str) -> None:
        """The worker of ``group`` is gone, with all that it had."""
        self.busy.pop(group, None)
        self.ahead.pop(group, None)
        self.saving = [one for one in self.saving if one[1] != group]

    def _lose(self, group: str, *, blames: bool = True) -> None:
        self._forget(group)
        for task in self.dispatcher.lost(group, self.now, "was killed", blames=blames):
            self._give_up(task, "WorkerLost")

    def _change_devices(self) -> None:
        """One device leaves, or joins again."""
        groups = self.dispatcher.groups.values()
        device = self.rng.choice(sorted({one for group in groups for one in group.devices}))
        if device in self.gone:
            self.gone.remove(device)
            return self.dispatcher.join(device)
        self.gone.add(device)
        for group in tuple(groups):
            if device in group.devices and group.state == "up":
                self._lose(group.id, blames=False)
        return self.dispatcher.leave(device, "it was lost with its machine")

    def _follow(self, phases: Sequence[Phase]) -> None:
        """As when a run is planned again: stages of which nothing is left but what runs are left out."""
        fleet, n_stages = self.dispatcher, len(self.dispatcher.stages)
        first = next(filter(fleet.n_waiting, range(n_stages)), n_stages)
        left = fleet.stages[min([first, *(at + 1 for at in filter(fleet.n_begun, range(n_stages)))]) :]
        units = [tuple(unit for unit in phase.units if unit.stage in left) for phase in phases]
        rest = tuple(Phase(some, tuple({one.stage: 0 for one in some})) for some in units if some)
        if rest:
            self.dispatcher.follow(rest)

    def _left_by(self, group: str, loaded: int) -> set[int]:
        """Stages whose models its worker had before, and has not with this one."""
        has = self.dispatcher.groups[group].resident
        return {stage for where, stage in self.loads if where == group and stage not in has} - {loaded}

    def _give_up(self, task: StageTask, why: str) -> None:
        self.given_up.append(task)
        self.dispatcher.go_on(self.flow.failed(task, ItemFailure("x", why, "gone")))

    def _done(self, group: str, task: StageTask) -> None:
        self.ran.append((group, task, self.now))
        self.n_begun = 0
        self.dispatcher.go_on(self.flow.done(task, {}))


def least_s(item_s: list[float], n_items: int) -> float:
    """Return the least makespan of equal whole items: each goes to who would end it first."""
    ends = [(seconds, seconds) for seconds in item_s]
    heapq.heapify(ends)
    last_s = 0.0
    for _ in range(n_items):
        last_s, seconds = ends[0]
        heapq.heapreplace(ends, (last_s + seconds, seconds))
    return last_s


def any_policy(seed: int) -> str:
    """A policy for the seed, by a draw that leaves those of the test as they are."""
    return random.Random(f"policy {seed}").choice(POLICIES)


def flow(n_items: int, stages=STAGES) -> ItemFlow:
    return ItemFlow([StageRule(name) for name in stages], [(Item(at, str(at)), {}) for at in range(n_items)])


def phases_of_mode(
    mode: str, stages: Sequence[str], devices: Sequence[str], *, split: Sequence[str] = (), in_flight: int = 1
) -> tuple[Phase, ...]:
    """The phases of ``mode`` over ``devices``, without knowing times or sizes.

    split      stages whose layers can be spread over devices, for model_parallel
    in_flight  items at once where they are
    """
    stages, devices = tuple(stages), tuple(devices)
    if mode == "single":
        devices = devices[:1]
    if mode == "data_parallel":
        units = [Unit((device,), stage) for stage in stages for device in devices]
        return (Phase(tuple(units), stages),)
    if mode == "stage_parallel":
        units = [Unit((device,), stages[at % len(stages)]) for at, device in enumerate(devices)]
        return (Phase(tuple(units), stages),)
    if mode == "model_parallel" and len(devices) > 1:
        fit = Fit("layer_split", in_flight=in_flight)
        return tuple(
            Phase((Unit(devices, stage, fit),), (stage,)) if stage in split else _side_by_side(stage, devices)
            for stage in stages
        )
    return tuple(_side_by_side(stage, devices) for stage in stages)


def _side_by_side(stage: str, devices: Sequence[str]) -> Phase:
    return Phase(tuple(Unit((device,), stage) for device in devices), (stage,))


def random_phases(
    rng: random.Random, stages: Sequence[str], devices: Sequence[str], n_items: int, p_split: float = 0.0
) -> tuple[Phase, ...]:
    """Stages one after the other or side by side, each on some of the devices, which get shares of it.

    p_split  chance of each stage to be spread over some devices, which may be those of another beside it
    """
    phases, at = [], 0
    while at < len(stages):
        side_by_side = tuple(stages[at : at + rng.randint(1, 3 if p_split else 2)])
        units = [
            Unit((device,), stage, limit=rng.choice([None, rng.randint(1, n_items)]))
            for stage in side_by_side for device in rng.sample(devices, rng.randint(1, len(devices)))
        ]  # fmt: skip
        if len(devices) > 1 and len(side_by_side) == 1 and rng.random() < 0.2:
            units = [Unit(tuple(devices), side_by_side[0], Fit("layer_split"))]
        for stage in side_by_side if p_split and len(devices) > 1 else ():
            if rng.random() < p_split:
                some = sorted(rng.sample(devices, rng.randint(2, len(devices))))
                units = [unit for unit in units if unit.stage != stage]
                units.append(Unit(tuple(some), stage, Fit("layer_split")))
        phases.append(Phase(tuple(units), side_by_side))
        at += len(side_by_side)
    return tuple(phases)
