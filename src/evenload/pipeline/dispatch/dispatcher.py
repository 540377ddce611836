"""Which group of devices does what next: the pure part of running a plan, without clock, process or file.

    add(tasks) ──► decide(now) ──► Start | Load | Run | Stop ──► up | loaded | ended | refused | lost ──► ...

A group is one worker with one or more devices of its own. It works off the phases of the plan in their order
and goes on to the next as soon as nothing is left for it in this one: no device waits for the slowest. What
it needs next it loads while it would wait. Tasks of a stage are dealt longest first. A decision costs
O(groups x units).
"""

from collections.abc import Iterable, Mapping, Sequence

from evenload.pipeline.dispatch.actions import Action, Group, Load, Post, Run, Start, Stop
from evenload.pipeline.dispatch.assignments import add_help, streaming_stages
from evenload.pipeline.dispatch.item_flow import Task
from evenload.pipeline.dispatch.oom_ladder import fewer_together, next_fit, smaller_in_flight
from evenload.pipeline.dispatch.outlook import Outlook
from evenload.pipeline.plan import Fit, Phase

__all__ = ["Dispatcher"]

MOST_EARLY_DEATHS = 3
BACK_OFF_S = 0.2  # before a worker that died early is tried again; doubles
MOST_TASK_DEATHS = 2  # a task that has ended so many workers is given up


class Dispatcher(Outlook):
    """Deals tasks to the groups that ``phases`` make of the devices.

    stages    their names, in order
    queue     most tasks that wait for a stage beside the one before it
    holds     a slow group leaves the last tasks to faster ones that will be done sooner
    fits      ways to hold each stage that may be tried when memory runs out, in their order
    oom       what is tried then: smaller_in_flight, next_fit, other_device
    free      device -> bytes that it may use, where that is known
    item_s    stage -> seconds for an item and to load, as far as known before
    load_s
    batch     stage -> most items in one call
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
        batch: Mapping[int, int] | None = None,
    ):
        super().__init__(stages, item_s or {}, load_s or {}, batch or {})
        self.drained: set[str] = set()
        self._queue, self._holds = queue, holds
        self._fits, self._oom = fits or {}, tuple(oom)
        self._deaths: dict[Task, int] = {}
        self._free = free or {}
        self.follow(phases)

    def follow(self, phases: Sequence[Phase], taken: Mapping[str, Mapping[int, int]] | None = None) -> None:
        """From now on these are the plan. What is loaded stays so, what runs goes on.

        taken   what each group had taken of each stage when the plan was made: limits count from there
        """
        before = taken or {}
        self._n_phases = len(phases)
        self._streams: set[tuple[int, int]] = set()
        for group in self.groups.values():
            group.posts.clear()
            was = before.get(group.id, group.n_taken)
            group.n_taken = {stage: n - was.get(stage, 0) for stage, n in group.n_taken.items()}
        for at, phase in enumerate(phases):
            for unit in phase.units:
                group, stage = self._group(unit.devices), self.stages.index(unit.stage)
                group.posts.append(Post(at, stage, group.lowered.get(stage, unit.fit), unit.limit))
            self._streams |= {(at, stage) for stage in streaming_stages(phase, self.stages)}
        add_help(self.groups, self._free, 2 * self._n_phases)

    def _group(self, devices: tuple[str, ...]) -> Group:
        name = "+".join(devices)
        if name not in self.groups:
            self.groups[name] = Group(name, devices, is_draining=bool(self.drained.intersection(devices)))
        return self.groups[name]

    # --- tasks ------------------------------------------------------------------------------------

    def add(self, tasks: Iterable[Task], costs: Mapping[int, float] | None = None) -> None:
        """These may run now. ``costs``: strand -> size in any unit; kept for its later stages."""
        self.waiting.add(tasks, costs)

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
        if post is None or self._turn(post, group) >= self._n_phases:
            post = self._ahead(group, now) or post
        if post is None:
            return None
        if group.resident.get(post.stage) != post.fit:
            return None if group.running else self._load(group, post, now)
        n_most = self._n_together(group, post)
        if len(group.running) >= post.fit.in_flight or not n_most:
            return None
        tasks = tuple(self._taken(group, post.stage, n_most))
        group.is_ordered = True
        group.n_taken[post.stage] = group.n_taken.get(post.stage, 0) + len(tasks)
        group.running.update(dict.fromkeys(tasks, now))
        return Run(group.id, tasks, "longest first" if self.waiting.has_costs else "next in line")

    def _load(self, group: Group, post: Post, now: float) -> Load:
        keep = tuple(p.stage for p in group.posts if p.phase == post.phase and p.stage != post.stage)
        gone = [stage for stage in group.resident if stage not in keep and stage != post.stage]
        later = tuple(stage for stage in sorted(gone) if self.waiting.count(stage) or self._is_fed(stage))
        group.is_ordered, group.loading, group.loading_since_s = True, post.stage, now
        group.resident = {stage: fit for stage, fit in group.resident.items() if stage in keep}
        return Load(group.id, post.stage, post.fit, keep, later)

    def _n_together(self, group: Group, post: Post) -> int:
        """How many tasks to take at once: near the end of a stage, no more than the others get as well."""
        most = self.batch_of(group.id, post.stage)
        if post.fit.in_flight > 1 or most == 1:
            return 1
        holders = sum(post.stage in one.resident for one in self.groups.values() if one.state == "up")
        return min(most, -(-self.waiting.count(post.stage) // max(1, holders)))

    def _taken(self, group: Group, stage: int, n_most: int) -> Iterable[Task]:
        """A task that was with a worker when it died is taken alone."""
        first = self.waiting.take(group.id, stage)
        yield first
        for _ in range(n_most - 1 if first not in self._deaths else 0):
            if not self.waiting.has_for(group.id, stage):
                return
            task = self.waiting.take(group.id, stage)
            if task in self._deaths:
                return self.waiting.give_back(task)
            yield task

    def _choose(self, group: Group, now: float) -> Post | None:
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

    def _ahead(self, group: Group, now: float) -> Post | None:
        """The next post of the plan, if its model can be loaded while its tasks are on their way."""
        planned = [post for post in group.posts if not post.is_help and post.stage not in group.refused]
        for post in sorted(planned, key=lambda post: self._turn(post, group)):
            if self._turn(post, group) >= self._n_phases:
                break
            if not self._is_done_with(group, post, now):
                is_there = group.resident.get(post.stage) == post.fit
                return None if is_there or group.running or self.waiting.count(post.stage) else post
        return None

    def _is_done_with(self, group: Group, post: Post, now: float) -> bool:
        """Nothing is left of it, or nothing that the others would not do sooner."""
        if self._is_fed(post.stage):
            return False
        if not self.waiting.count(post.stage):
            return True
        return self._holds and self._is_too_slow(group, post.stage, self._holders(group, post.stage), now)

    def _first(self, posts: list[Post], group: Group) -> Post | None:
        if not posts:
            return None
        first = min(self._turn(post, group) for post in posts)
        mine = [post for post in posts if self._turn(post, group) == first]
        # Through to the end while there is plenty, so that results come early; at the end what has most
        # before it goes first.
        n_before = sum(self.waiting.count(stage) for stage in range(mine[0].stage + 1))
        is_plenty = n_before > 2 * len(self.groups)
        return min(mine, key=lambda post: -post.stage if is_plenty else post.stage)

    def _may(self, group: Group, post: Post, now: float) -> bool:
        if post.stage in group.refused or not self.waiting.has_for(group.id, post.stage):
            return False
        holders = self._holders(group, post.stage)
        if post.stage not in group.resident and group.resident and holders:
            mine = [p for p in group.posts if p.stage in group.resident and not p.is_help]
            is_back = any(p.phase > post.phase for p in mine)
            if is_back and post.stage not in group.parked:
                return False  # those who still have the model there do it
        if post.is_help and post.stage not in group.resident:
            is_planned = any(self._is_coming(p.stage) for p in group.posts if not p.is_help)
            if (is_planned and group.state == "off") or not self._is_worth_loading(group, post.stage):
                return False
            if self._waits_for_its_own(group) and self._is_planned_elsewhere(group, post.stage):
                return False
        if (post.phase, post.stage) in self._streams and self._n_next(post.stage) >= self._queue:
            return False
        return not (self._holds and self._is_too_slow(group, post.stage, holders, now))

    def _activate(self, group: Group, now: float) -> list[Action]:
        """Start ``group`` if it has something to do and its devices are its own, or can be."""
        mine = set(group.devices)
        owners = [g for g in self.groups.values() if g.state in ("up", "starting") and mine & set(g.devices)]
        is_due = any(self._is_due(group, post, now) for post in group.posts)
        if not is_due and (owners or not self._is_next(group, now)):
            return []
        for owner in owners:
            if owner.state == "starting" or owner.is_working or self._choose(owner, now) is not None:
                return []
        actions: list[Action] = []
        for owner in owners:
            owner.reset()
            owner.state = "off"
            owner.not_before_s = 0.0
            actions.append(Stop(owner.id))
        group.state = "starting"
        return [*actions, Start(group.id)]

    def _is_next(self, group: Group, now: float) -> bool:
        """Nobody else wants its devices before it can be loaded for what is on its way."""
        ahead, mine = self._ahead(group, now), set(group.devices)
        rivals = [g for g in self.groups.values() if g is not group and mine & set(g.devices)]
        if ahead is None:
            return False
        sooner = [(rival, post) for rival in rivals for post in rival.posts if post.phase <= ahead.phase]
        return all(self._is_done_with(rival, post, now) for rival, post in sooner)

    def _is_due(self, group: Group, post: Post, now: float) -> bool:
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

    def loaded(
        self,
        group_id: str,
        stage: int,
        fit: Fit,
        seconds: float | None = None,
        parked: Mapping[int, float] | None = None,
    ) -> None:
        """``seconds`` it took, if it was read; ``parked``: as in ``Group``, from now on."""
        group = self.groups[group_id]
        if seconds is not None:
            self._load_s[stage] = seconds
        group.resident[stage], group.parked = fit, dict(parked or {})
        group.loading = None
        group.n_load_deaths = 0

    def refused(self, group_id: str, stage: int, why: str) -> None:
        """``stage`` cannot be built there."""
        group = self.groups[group_id]
        group.loading = None
        group.refused[stage] = why

    def made(self, group_id: str, task: Task, seconds: float | None = None) -> None:
        """The task is computed; its files are on their way to the disk, and the group can go on."""
        group = self.groups[group_id]
        self._computed(group, task, seconds)
        group.saving.add(task)

    def ended(self, group_id: str, task: Task, seconds: float | None = None) -> None:
        """The task is over there, well or not; ``seconds`` it took if that says how fast the group is."""
        group = self.groups[group_id]
        self._computed(group, task, seconds)
        group.saving.discard(task)
        group.n_early_deaths = 0

    def _computed(self, group: Group, task: Task, seconds: float | None) -> None:
        group.running.pop(task, None)
        if seconds is not None:
            group.timed(task.stage, seconds)

    def again(self, group_id: str, task: Task) -> None:
        """The task was not run after all."""
        self.groups[group_id].running.pop(task, None)
        self.add([task])

    def one_by_one(self, group_id: str, stage: int) -> None:
        """No batches of ``stage`` there."""
        self.groups[group_id].batch[stage] = 1

    def out_of_memory(self, group_id: str, task: Task) -> str | None:
        """The task did not fit there. What is tried now, in words; None if nothing is left to try."""
        group = self.groups[group_id]
        group.running.pop(task, None)
        # First of all, whatever the job allows: alone the item may fit.
        said = fewer_together(group, task.stage, self.batch_of(group_id, task.stage))
        for step in self._oom if said is None else ():
            if step == "smaller_in_flight":
                said = smaller_in_flight(group, task.stage)
            elif step == "next_fit":
                said = next_fit(group, task.stage, self._fits.get(self.stages[task.stage], ()))
            elif step == "other_device":
                said = self._elsewhere(group, task)
            if said is not None:
                break
        if said is not None:
            self.add([task])
        return said

    def _elsewhere(self, group: Group, task: Task) -> str | None:
        avoided = self.waiting.avoid.setdefault(task, set())
        avoided.add(group.id)
        if any(self._could_run(other, task) for other in self.groups.values()):
            return "another device"
        self.waiting.avoid.pop(task)
        return None

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
        self.add(group.saving)
        group.reset()
        group.state = "off"
        if group.n_early_deaths >= MOST_EARLY_DEATHS:
            group.state, group.why_lost = (
                "lost",
                f"its worker {why} {group.n_early_deaths} times before it had a result",
            )
        return given_up

    def smaller_fit(self, group_id: str, stage: int) -> str | None:
        """The model did not even load there: another fit, in words, or None."""
        self.groups[group_id].loading = None
        if "next_fit" not in self._oom:
            return None
        return next_fit(self.groups[group_id], stage, self._fits.get(self.stages[stage], ()))

    def restart(self, group_id: str) -> None:
        """Its worker is ended from outside; a new one is to take over."""
        group = self.groups[group_id]
        self.add([*group.running, *group.saving])
        group.reset()
        group.state, group.not_before_s = "off", 0.0

    def drain(self, device: str) -> None:
        """``device`` is to take nothing more; what it runs may be finished."""
        self.drained.add(device)
        for group in self.groups.values():
            if device in group.devices:
                group.is_draining = True

    def join(self, device: str) -> None:
        """``device`` comes back after a drain, or is new: then it does what others of one device do."""
        self.drained.discard(device)
        known = [group for group in self.groups.values() if device in group.devices]
        for group in known:
            group.is_draining = bool(self.drained.intersection(group.devices))
            if group.state == "lost":
                group.state, group.n_early_deaths = "off", 0
        if not known:
            self._group((device,))
            add_help(self.groups, self._free, 2 * self._n_phases)
