"""Which work takes too long, and what is done about it: pure, by a clock that is given.

look(clock, groups, n_waiting) ──► SlowWork (a person should know) | EndWorker (kill, and who is to blame)

An item is to blame only if nothing else ran in its worker: of several together nobody can tell which one
hangs, so each is run alone then. Without a time limit, nothing is failed: an item that runs 20 times as long
as all others of its stage makes way for those that wait, where nobody else takes them, and is run last.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from evenload.executor.supervisor.awake_clock import AwakeClock
from evenload.pipeline.dispatch.device_group import DeviceGroup
from evenload.pipeline.dispatch.item_flow import StageTask, TimeLimit

SLOW_S = 30.0  # what goes on for so long, and much longer than all before, is told
SLOW_TIMES = 20.0
SLOW_LOAD_S = 120.0  # a model of 60 GB takes a minute to read
SLOW_LOAD_TIMES = 3.0
UNKNOWN_S = 600.0  # an item of a stage of which nothing has ended yet does not make way before
MORE_PATIENCE = 1.5  # each time that one had to make way, and might have been no hang
WAITING_TIMES, WAITING_S = 3.0, 10.0  # of its limit, and beside: an item that its own worker should end
MOST_STEP_S = 5.0  # of the clock at once: when the program itself was stopped, nobody has worked


@dataclass(frozen=True, slots=True)
class SlowWork:
    """Work that goes on for so long that a person should know of it.

    task   None: the model of ``stage`` is being loaded
    """

    group: str
    stage: int
    task: StageTask | None
    seconds: float


@dataclass(frozen=True, slots=True)
class EndWorker:
    """An instruction to kill the worker of ``group``; what it ran is dealt again, and counts no attempt.

    why      in words that fit after "the worker"
    failed   tasks over their time limit: they are not dealt again
    alone    tasks that are run alone from now on, as one of them hangs
    later    tasks that are run last
    loading  a stage that took too long to load
    error    type and text of the failure of those that failed
    """

    group: str
    why: str
    failed: tuple[StageTask, ...] = ()
    alone: tuple[StageTask, ...] = ()
    later: tuple[StageTask, ...] = ()
    loading: int | None = None
    error: tuple[str, str] = ("TaskTimeout", "")


Verdict = SlowWork | EndWorker


class HangWatch:
    """The timer of a run's items and loads; ``look`` gives the same verdict until it was acted upon.

    limit_of      how long a task may take; None: as long as it likes
    load_limit_s  stage -> seconds that loading its model may take
    known_s       stage -> seconds of an item, as far as known before
    lasting       stages whose items may run once only: they never make way
    """

    def __init__(
        self,
        limit_of: Callable[[StageTask], TimeLimit | None] = lambda task: None,
        load_limit_s: Mapping[int, float] | None = None,
        known_s: Mapping[int, float] | None = None,
        lasting: Iterable[int] = (),
    ):
        self._limit_of, self._load_limit_s = limit_of, load_limit_s or {}
        self._longest_s = dict(known_s or {})
        self._longest_load_s: dict[int, float] = {}
        self._lasting = frozenset(lasting)
        self._patience: dict[int, float] = {}
        self._clock, self._now = AwakeClock(MOST_STEP_S), 0.0
        self._going: dict[tuple[str, StageTask | int], float] = {}  # task or loading stage: since

    def look(self, clock_s: float, groups: Sequence[DeviceGroup], n_waiting: int) -> list[Verdict]:
        """What takes too long at ``clock_s``. ``n_waiting``: tasks that could run, and do not."""
        self._advance(clock_s, groups)
        verdicts: list[Verdict] = []
        for group in groups:
            verdicts += self._look_at(group)
        is_any_ended = any(isinstance(one, EndWorker) for one in verdicts)
        if not is_any_ended and self._is_stuck(groups, n_waiting):
            why = "was killed: its item seems to hang, and others wait; it is run again when they are through"
            stuck = (group for group in groups if group.running)
            verdicts += [EndWorker(group.id, why, later=tuple(group.running)) for group in stuck]
        return verdicts

    def forget(self, group: str) -> None:
        """Forget a worker that is gone: how long it has worked says nothing."""
        self._going = {key: since_s for key, since_s in self._going.items() if key[0] != group}

    def made_way(self, tasks: Iterable[StageTask]) -> None:
        """Note tasks that had to make way: others of their stage may take longer before they have to."""
        for stage in {task.stage for task in tasks}:
            self._patience[stage] = self._patience.get(stage, 1.0) * MORE_PATIENCE

    # --- time -------------------------------------------------------------------------------------

    def _advance(self, clock_s: float, groups: Sequence[DeviceGroup]) -> None:
        self._clock.look(clock_s)
        self._now = clock_s
        for group in groups:  # quick items come and go between two looks
            for stage, item_s in group.item_s.items():
                self._longest_s[stage] = max(self._longest_s.get(stage, 0.0), item_s)
        going: dict[tuple[str, StageTask | int], float] = {}
        for group in groups:
            going |= {(group.id, task): since_s for task, since_s in group.running.items()}
            if group.loading is not None:
                going[group.id, group.loading] = group.loading_since_s
        for key in self._going.keys() - going.keys():
            what, took_s = key[1], self._clock.since(self._going[key], clock_s)
            longest = self._longest_load_s if isinstance(what, int) else self._longest_s
            stage = what if isinstance(what, int) else what.stage
            longest[stage] = max(longest.get(stage, 0.0), took_s)
        self._going = going

    def _seconds(self, since_s: float) -> float:
        return self._clock.since(since_s, self._now)

    # --- rules ------------------------------------------------------------------------------------

    def _look_at(self, group: DeviceGroup) -> Iterator[Verdict]:
        if group.loading is not None:
            yield from self._look_at_load(group, group.loading)
        over = tuple(task for task in group.running if self._is_over(group, task))
        if over and len(group.running) == 1:
            limit = self._limit_of(over[0])
            text = limit.text if limit is not None else ""
            why = "was killed: its item was over its time limit"
            said = f"the item ran longer than {text} and was ended"
            yield EndWorker(group.id, why, failed=over, error=("TaskTimeout", said))
        elif over:
            yield EndWorker(group.id, "was killed: one of its items was over its time limit", alone=over)
        elif len(group.running) > 1 and all(self._may_hang(group, task) for task in group.running):
            why = "was killed: one of its items hangs, and nobody can tell which"
            yield EndWorker(group.id, why, alone=tuple(group.running))
        for task in group.running:
            seconds = self._seconds(group.running[task])
            if seconds >= max(SLOW_S, SLOW_TIMES * self._longest_s.get(task.stage, 0.0)):
                yield SlowWork(group.id, task.stage, task, seconds)

    def _look_at_load(self, group: DeviceGroup, stage: int) -> Iterator[Verdict]:
        seconds, limit_s = self._seconds(group.loading_since_s), self._load_limit_s.get(stage)
        if limit_s is not None and seconds > limit_s:
            yield EndWorker(group.id, f"took longer than {limit_s:g} s", loading=stage)
        if seconds >= max(SLOW_LOAD_S, SLOW_LOAD_TIMES * self._longest_load_s.get(stage, 0.0)):
            yield SlowWork(group.id, stage, None, seconds)

    def _is_over(self, group: DeviceGroup, task: StageTask) -> bool:
        """Is it over its limit, or not even ended by the worker that should have?

        A batch has twice the sum of its items, as it may be done one by one, too.
        """
        limit = self._limit_of(task)
        if limit is None:
            return False
        fit, n_together = group.resident.get(task.stage), group.running_of(task.stage)
        if fit is not None and fit.is_waiting:  # its worker ends it, and knows when it began
            return self._seconds(group.running[task]) > WAITING_TIMES * limit.seconds + WAITING_S
        is_batch = n_together > 1 and (fit is None or fit.in_flight == 1)
        return self._seconds(group.running[task]) > limit.seconds * (2 * n_together if is_batch else 1)

    def _may_hang(self, group: DeviceGroup, task: StageTask) -> bool:
        """Does it take so long that it should make way for others, if it is allowed to be run again?"""
        if task.stage in self._lasting or self._limit_of(task) is not None:
            return False
        longest_s = self._longest_s.get(task.stage)
        usual_s = UNKNOWN_S if longest_s is None else max(SLOW_S, SLOW_TIMES * longest_s)
        return self._seconds(group.running[task]) >= usual_s * self._patience.get(task.stage, 1.0)

    def _is_stuck(self, groups: Sequence[DeviceGroup], n_waiting: int) -> bool:
        """Does everything that works seem to hang, so that nobody takes what waits?

        Files that a worker has saved wait, too: it tells of them when it has answered. So does what it has
        not begun.
        """
        hung = [one for one in groups if one.running and all(self._may_hang(one, t) for t in one.running)]
        others = [one for one in groups if one not in hung]
        if any(one.running or one.saving or one.state == "starting" for one in others):
            return False
        if any(one.loading is not None for one in others):
            return False
        return bool(hung) and bool(n_waiting or any(one.saving or one.n_unbegun for one in hung))
