"""Which group of devices does what next: the pure part of running a plan, without clock, process or file.

    add(tasks) ──► decide(now) ──► Start | Load | Run | Stop ──► up | loaded | ended | refused | lost ──► ...

A group is one worker with one or more devices of its own. It works off the phases of the plan in their order
and goes on to the next as soon as nothing is left for it in this one: no device waits for the slowest.
Tasks of a stage are dealt longest first. A decision costs O(groups x units).
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from evenload.pipeline.course import Task
from evenload.pipeline.plan import Fit, Phase

__all__ = ["Action", "Dispatcher", "Group", "Load", "Run", "Start", "Stop"]

MOST_EARLY_DEATHS = 3
BACK_OFF_S = 0.2  # before a worker that died early is tried again; doubles
MOST_TASK_DEATHS = 2  # a task that has ended so many workers is given up
FEW = 4  # ready tasks for each other group: more, and nobody holds back


@dataclass(frozen=True, slots=True)
class Start:
    """Start a worker for ``group``."""

    group: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End the worker of ``group``: its devices are wanted by another."""

    group: str


@dataclass(frozen=True, slots=True)
class Load:
    """Make ``stage`` ready on ``group``; stages that are not in ``keep`` make room first."""

    group: str
    stage: int
    fit: Fit
    keep: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Run:
    group: str
    task: Task
    why: str


Action = Start | Stop | Load | Run


@dataclass(frozen=True, slots=True)
class _Post:
    """One unit of the plan, seen from its group. ``is_help``: not planned, but better than to stand idle."""

    phase: int
    stage: int
    fit: Fit
    limit: int | None = None
    is_help: bool = False


@dataclass(slots=True)
class Group:
    """``state``: off | starting | up | lost. ``is_ordered``: it has an order that it has not answered."""

    id: str
    devices: tuple[str, ...]
    posts: list[_Post] = field(default_factory=list)
    state: str = "off"
    is_ordered: bool = False
    resident: dict[int, Fit] = field(default_factory=dict)
    loading: int | None = None
    running: dict[Task, float] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    item_s: dict[int, float] = field(default_factory=dict)
    n_taken: dict[int, int] = field(default_factory=dict)
    n_early_deaths: int = 0
    n_load_deaths: int = 0
    not_before_s: float = 0.0
    why_lost: str = ""
    is_draining: bool = False


class Dispatcher:
    """Deals tasks to the groups that ``phases`` make of the devices.

    stages    their names, in order
    queue     most tasks that wait for a stage beside the one before it
    holds     a slow group leaves the last tasks to faster ones that will be done sooner
    fits      ways to hold each stage that may be tried when memory runs out, in their order
    oom       what is tried then: smaller_in_flight, next_fit, other_device
    free      device -> bytes that it may use, where that is known
    item_s    stage -> seconds for an item and to load, as far as known before
    load_s
    """

    def __init__(
        self,
        phases: Sequence[Phase],
        stages: Sequence[str],
        *,
        queue: int = 8,
        holds: bool = True,
        fits: Mapping[str, Sequence[str]] | None = None,
        oom: Sequence[str] = (),
        free: Mapping[str, int] | None = None,
        item_s: Mapping[int, float] | None = None,
        load_s: Mapping[int, float] | None = None,
    ):
        self.stages = tuple(stages)
        self.groups: dict[str, Group] = {}
        self._queue, self._holds = queue, holds
        self._fits, self._oom = fits or {}, tuple(oom)
        self._ready: list[list[tuple[float, int, Task]]] = [[] for _ in stages]
        self._avoid: dict[Task, set[str]] = {}
        self._deaths: dict[Task, int] = {}
        self._costs: dict[int, float] = {}
        self._streams: set[tuple[int, int]] = set()
        self._item_s, self._load_s = dict(item_s or {}), dict(load_s or {})
        self._n_phases = len(phases)
        number = {name: at for at, name in enumerate(stages)}
        for at, phase in enumerate(phases):
            for unit in phase.units:
                group = self._group(unit.devices)
                group.posts.append(_Post(at, number[unit.stage], unit.fit, unit.limit))
            self._streams |= {(at, stage) for stage in self._streaming(phase, number)}

        self._add_help(free or {})

    def _add_help(self, free: Mapping[str, int]) -> None:
        """Groups of one device may do what others of one device do, if the model fits: plans can be wrong."""
        fits: dict[int, Fit] = {}
        for group in self.groups.values():
            if len(group.devices) == 1:
                for post in group.posts:
                    fits.setdefault(post.stage, post.fit)
        for group in self.groups.values():
            has = {post.stage for post in group.posts}
            for stage, fit in fits.items() if len(group.devices) == 1 else ():
                room = free.get(group.devices[0])
                needed = fit.device2bytes[0] if fit.device2bytes else 0
                if stage not in has and (room is None or needed <= room):
                    group.posts.append(_Post(2 * self._n_phases, stage, fit, is_help=True))

    def _group(self, devices: tuple[str, ...]) -> Group:
        name = "+".join(devices)
        return self.groups.setdefault(name, Group(name, devices))

    def _streaming(self, phase: Phase, number: Mapping[str, int]) -> Iterable[int]:
        """Stages of ``phase`` whose results are taken by other groups: their number in wait is bounded."""
        holders = {
            name: {unit.devices for unit in phase.units if unit.stage == name} for name in phase.stages
        }
        for name in phase.stages:
            after = self.stages[number[name] + 1 : number[name] + 2]
            if after and holders.get(after[0]) and holders[name] - holders[after[0]]:
                yield number[name]

    # --- tasks ------------------------------------------------------------------------------------

    def add(self, tasks: Iterable[Task], costs: Mapping[int, float] | None = None) -> None:
        """These may run now. ``costs``: strand -> size in any unit; kept for its later stages."""
        self._costs.update(costs or {})
        for task in tasks:
            heapq.heappush(self._ready[task.stage], (-self._costs.get(task.strand, 0.0), task.strand, task))

    @property
    def n_ready(self) -> int:
        return sum(map(len, self._ready))

    @property
    def n_running(self) -> int:
        return sum(len(group.running) for group in self.groups.values())

    # --- decisions --------------------------------------------------------------------------------

    def decide(self, now: float, *, deals: bool = True) -> list[Action]:
        """What is to be done now. With ``deals`` False nothing new is begun."""
        actions: list[Action] = []
        if not deals:
            return actions
        for group in self._fastest_first():
            if group.state == "up" and not group.is_ordered and not group.is_draining:
                action = self._order(group, now)
                if action is not None:
                    actions.append(action)
        for group in self.groups.values():
            if group.state == "off" and now >= group.not_before_s and not group.is_draining:
                actions += self._activate(group, now)
        return actions

    def wake_s(self, now: float) -> float | None:
        """Seconds until there may be something to decide that no answer brings about."""
        due = [group.not_before_s - now for group in self.groups.values() if group.state == "off"]
        return min((seconds for seconds in due if seconds > 0), default=None)

    def _fastest_first(self) -> list[Group]:
        def key(group: Group) -> float:
            return sum(group.item_s.values()) / max(1, len(group.item_s))

        return sorted(self.groups.values(), key=key)

    def _order(self, group: Group, now: float) -> Action | None:
        post = self._choose(group, now)
        if post is None:
            return None
        if group.resident.get(post.stage) != post.fit:
            if group.running:
                return None  # the model is swapped when nothing uses it
            keep = tuple(p.stage for p in group.posts if p.phase == post.phase and p.stage != post.stage)
            group.is_ordered, group.loading = True, post.stage
            group.resident = {stage: fit for stage, fit in group.resident.items() if stage in keep}
            return Load(group.id, post.stage, post.fit, keep)
        if len(group.running) >= post.fit.in_flight:
            return None
        task = self._take(group, post.stage)
        group.is_ordered = True
        group.n_taken[post.stage] = group.n_taken.get(post.stage, 0) + 1
        group.running[task] = now
        return Run(group.id, task, "longest first" if self._costs else "next in line")

    def _choose(self, group: Group, now: float) -> _Post | None:
        """What ``group`` should work at: the earliest phase that has something for it."""
        open_ = [post for post in group.posts if self._may(group, post, now)]
        if not open_:
            return None
        here = self._first([post for post in open_ if post.stage in group.resident], group)
        other = self._first([post for post in open_ if post.stage not in group.resident], group)
        if here is None or other is None:
            return here or other
        if self._turn(other, group) == self._turn(here, group):
            return self._first([here, other], group)
        is_sooner = self._turn(other, group) < self._turn(here, group)
        return other if is_sooner and self._is_worth_loading(group, other.stage) else here

    def _turn(self, post: _Post, group: Group) -> int:
        """When it is the turn of ``post``: in its phase; beyond its limit, after all phases."""
        is_beyond = post.limit is not None and group.n_taken.get(post.stage, 0) >= post.limit
        return post.phase + (self._n_phases if is_beyond else 0)

    def _first(self, posts: list[_Post], group: Group) -> _Post | None:
        if not posts:
            return None
        first = min(self._turn(post, group) for post in posts)
        mine = [post for post in posts if self._turn(post, group) == first]
        # Through to the end while there is plenty, so that results come early; at the end what has most
        # before it goes first.
        is_plenty = sum(map(len, self._ready[: mine[0].stage + 1])) > 2 * len(self.groups)
        return min(mine, key=lambda post: -post.stage if is_plenty else post.stage)

    def _is_worth_loading(self, group: Group, stage: int) -> bool:
        """Is there more work of ``stage`` than those who have it will do while ``group`` loads it?"""
        holders = [g for g in self.groups.values() if g is not group and stage in g.resident]
        known = [g.item_s[stage] for g in holders if stage in g.item_s]
        item_s = sum(known) / len(known) if known else self._item_s.get(stage)
        if not holders or item_s is None:
            return True
        without_s = len(self._ready[stage]) * item_s / len(holders)
        return without_s > self._load_s.get(stage, 0.0) + group.item_s.get(stage, item_s)

    def _may(self, group: Group, post: _Post, now: float) -> bool:
        if post.stage in group.refused or not self._has_task(group, post.stage):
            return False
        others = [g for g in self.groups.values() if g is not group and g.state == "up" and not g.is_draining]
        holders = [g for g in others if post.stage in g.resident and post.stage not in g.refused]
        if post.stage not in group.resident and group.resident and holders:
            mine = [p for p in group.posts if p.stage in group.resident and not p.is_help]
            is_back = any(p.phase > post.phase for p in mine)
            if is_back:
                return False  # those who still have the model there do it
        if post.is_help and post.stage not in group.resident:
            is_planned = any(self._is_coming(p.stage) for p in group.posts if not p.is_help)
            if (is_planned and group.state == "off") or not self._is_worth_loading(group, post.stage):
                return False
        if (post.phase, post.stage) in self._streams:
            n_coming = sum(task.stage == post.stage for g in self.groups.values() for task in g.running)
            if len(self._ready[post.stage + 1]) + n_coming >= self._queue:
                return False
        return not (self._holds and self._is_too_slow(group, post.stage, holders, now))

    def _is_too_slow(self, group: Group, stage: int, holders: list[Group], now: float) -> bool:
        """Would the others be done with all that is ready before ``group`` was done with one of it?"""
        mine_s, n_ready = group.item_s.get(stage), len(self._ready[stage])
        others = [g for g in holders if g.item_s.get(stage)]
        if mine_s is None or not others or n_ready > FEW * len(others) or self._is_fed(stage):
            return False
        free = [max([now, *(since + g.item_s[stage] for since in g.running.values())]) for g in others]
        ends = [(start + g.item_s[stage], g.item_s[stage]) for start, g in zip(free, others, strict=True)]
        heapq.heapify(ends)
        last = now
        for _ in range(n_ready):
            last, seconds = heapq.heappop(ends)
            heapq.heappush(ends, (last + seconds, seconds))
        return now + mine_s > last

    def _is_coming(self, stage: int) -> bool:
        """Are there tasks of ``stage``, or will there be soon: is the stage before it under way?"""
        return bool(self._ready[stage]) or any(
            task.stage == stage - 1 for group in self.groups.values() for task in group.running
        )

    def _is_fed(self, stage: int) -> bool:
        """May more tasks of ``stage`` come?"""
        return any(self._ready[:stage]) or any(
            task.stage < stage for group in self.groups.values() for task in group.running
        )

    def _has_task(self, group: Group, stage: int) -> bool:
        if not self._avoid:
            return bool(self._ready[stage])
        return any(group.id not in self._avoid.get(task, ()) for _, _, task in self._ready[stage])

    def _take(self, group: Group, stage: int) -> Task:
        heap = self._ready[stage]
        entry = (
            min(one for one in heap if group.id not in self._avoid.get(one[2], ()))
            if self._avoid
            else heap[0]
        )
        if entry is heap[0]:
            heapq.heappop(heap)
        else:
            heap.remove(entry)
            heapq.heapify(heap)
        return entry[2]

    def _activate(self, group: Group, now: float) -> list[Action]:
        """Start ``group`` if it has something to do and its devices are its own, or can be."""
        if not any(self._is_due(group, post, now) for post in group.posts):
            return []
        mine = set(group.devices)
        owners = [g for g in self.groups.values() if g.state in ("up", "starting") and mine & set(g.devices)]
        for owner in owners:
            is_busy = owner.state == "starting" or owner.is_ordered or owner.running
            if is_busy or self._choose(owner, now) is not None:
                return []
        actions: list[Action] = []
        for owner in owners:
            self._reset(owner)
            owner.state = "off"
            owner.not_before_s = 0.0
            actions.append(Stop(owner.id))
        group.state = "starting"
        return [*actions, Start(group.id)]

    def _is_due(self, group: Group, post: _Post, now: float) -> bool:
        """It has work, or soon will: its stage runs side by side with the one before it."""
        if post.stage in group.refused:
            return False
        return self._may(group, post, now) or (post.phase, post.stage - 1) in self._streams

    # --- what became of it ------------------------------------------------------------------------

    def up(self, group_id: str) -> None:
        """Its worker is ready for orders."""
        self.groups[group_id].state = "up"

    def answered(self, group_id: str) -> None:
        self.groups[group_id].is_ordered = False

    def loaded(self, group_id: str, stage: int, fit: Fit, seconds: float | None = None) -> None:
        group = self.groups[group_id]
        if seconds is not None:
            self._load_s[stage] = seconds
        group.resident[stage] = fit
        group.loading = None
        group.n_load_deaths = 0

    def refused(self, group_id: str, stage: int, why: str) -> None:
        """``stage`` cannot be built there."""
        group = self.groups[group_id]
        group.loading = None
        group.refused[stage] = why

    def ended(self, group_id: str, task: Task, seconds: float | None = None) -> None:
        """The task is over there, well or not; ``seconds`` it took if that says how fast the group is."""
        group = self.groups[group_id]
        group.running.pop(task, None)
        group.n_early_deaths = 0
        if seconds is not None:
            before = group.item_s.get(task.stage)
            group.item_s[task.stage] = seconds if before is None else 0.7 * before + 0.3 * seconds

    def out_of_memory(self, group_id: str, task: Task) -> str | None:
        """The task did not fit there. What is tried now, in words; None if nothing is left to try."""
        group = self.groups[group_id]
        group.running.pop(task, None)
        said = None
        for step in self._oom:
            if step == "smaller_in_flight":
                said = self._smaller(group, task.stage)
            elif step == "next_fit":
                said = self._next_fit(group, task.stage)
            elif step == "other_device":
                said = self._elsewhere(group, task)
            if said is not None:
                self.add([task])
                return said
        return None

    def _smaller(self, group: Group, stage: int) -> str | None:
        for at, post in enumerate(group.posts):
            if post.stage == stage and post.fit.in_flight > 1:
                fewer = post.fit.in_flight // 2
                group.posts[at] = replace(post, fit=replace(post.fit, in_flight=fewer))
                if stage in group.resident:
                    group.resident[stage] = group.posts[at].fit  # nothing is built anew for that
                return f"{fewer} in flight"
        return None

    def _next_fit(self, group: Group, stage: int) -> str | None:
        ladder = [name for name in self._fits.get(self.stages[stage], ()) if name != "layer_split"]
        for at, post in enumerate(group.posts):
            if post.stage != stage or len(group.devices) > 1 or post.fit.name not in ladder:
                continue
            lower = ladder[ladder.index(post.fit.name) + 1 :]
            if lower:
                n_resident = 0 if lower[0] == "resident_stream" else None
                group.posts[at] = replace(post, fit=Fit(lower[0], resident_blocks=n_resident))
                return f"fit {lower[0]}"
        return None

    def _elsewhere(self, group: Group, task: Task) -> str | None:
        avoided = self._avoid.setdefault(task, set())
        avoided.add(group.id)
        if any(self._could_run(other, task) for other in self.groups.values()):
            return "another device"
        self._avoid.pop(task)
        return None

    def _could_run(self, group: Group, task: Task) -> bool:
        has_post = any(post.stage == task.stage for post in group.posts)
        is_there = group.state != "lost" and not group.is_draining and task.stage not in group.refused
        return has_post and is_there and group.id not in self._avoid.get(task, ())

    def lost(self, group_id: str, now: float, why: str) -> list[Task]:
        """Its worker is gone. Returns the tasks that are given up; the others will be dealt again."""
        group = self.groups[group_id]
        given_up = []
        for task in list(group.running):
            self._deaths[task] = self._deaths.get(task, 0) + 1
            if self._deaths[task] >= MOST_TASK_DEATHS:
                given_up.append(task)
            else:
                self.add([task])
        if group.loading is not None:
            group.n_load_deaths += 1
            if group.n_load_deaths >= MOST_TASK_DEATHS:
                group.refused[group.loading] = f"its worker {why} while it loaded the model"
                group.n_load_deaths = 0
        if not group.running:
            group.n_early_deaths += 1
            group.not_before_s = now + BACK_OFF_S * 2 ** (group.n_early_deaths - 1)
        self._reset(group)
        group.state = "off"
        if group.n_early_deaths >= MOST_EARLY_DEATHS:
            group.state, group.why_lost = (
                "lost",
                f"its worker {why} {group.n_early_deaths} times at the start",
            )
        return given_up

    def smaller_fit(self, group_id: str, stage: int) -> str | None:
        """The model did not even load there: another fit, in words, or None."""
        self.groups[group_id].loading = None
        return self._next_fit(self.groups[group_id], stage) if "next_fit" in self._oom else None

    def restart(self, group_id: str) -> None:
        """Its worker is ended from outside; a new one is to take over."""
        group = self.groups[group_id]
        self.add(list(group.running))
        self._reset(group)
        group.state, group.not_before_s = "off", 0.0

    def drain(self, device: str) -> None:
        """``device`` is to take nothing more; what it runs may be finished."""
        for group in self.groups.values():
            if device in group.devices:
                group.is_draining = True

    def join(self, device: str) -> None:
        """``device`` comes back after a drain, or is new: then it does what others of one device do."""
        known = [group for group in self.groups.values() if device in group.devices]
        for group in known:
            group.is_draining = False
            if group.state == "lost":
                group.state, group.n_early_deaths = "off", 0
        if not known:
            self._group((device,))
            self._add_help({})

    def _reset(self, group: Group) -> None:
        group.running.clear()
        group.resident.clear()
        group.loading = None
        group.is_ordered = False

    def why_stuck(self) -> tuple[int, dict[str, str]] | None:
        """A stage that has tasks which nobody can run, and why not, by device; None if there is none."""
        for stage, heap in enumerate(self._ready):
            if heap and not any(self._could_run(g, t) for g in self.groups.values() for _, _, t in heap):
                causes = {}
                for group in self.groups.values():
                    if any(post.stage == stage for post in group.posts):
                        drained = "it was drained" if group.is_draining else "no memory for it"
                        causes[group.id] = group.refused.get(stage) or group.why_lost or drained
                return stage, causes
        return None
