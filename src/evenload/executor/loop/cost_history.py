"""What an executor has learned of its tasks, in this program and in earlier ones."""

from collections.abc import Mapping, MutableMapping

from evenload._user_folders import user_cache
from evenload.balance.policy.estimate import Cost
from evenload.balance.sizes.size_learner import SizeLearner
from evenload.balance.sizes.size_model import SizeModel
from evenload.devices import DevicePool
from evenload.executor.decide.record import Record
from evenload.executor.decide.source import Source
from evenload.executor.decide.summary import Summary
from evenload.executor.loop.cost_cache import CostCache, Learned, size_bucket
from evenload.executor.run.run import Run
from evenload.executor.task.task import PreparedTask
from evenload.settings import resolve

WORTH_TELLING_S = 0.1  # a device that was busy for less has not shown what it can do


class CostHistory:
    """The costs that an executor has learned, by task and device.

    ceilings   (task, device) -> items per call that fit; shared with the engine
    is_kept    for other programs, too
    """

    def __init__(self, ceilings: MutableMapping[tuple[int, str], int], record: Record, *, is_kept: bool):
        self._ceilings = ceilings
        self._record = record
        self._costs: dict[int, dict[str, Cost]] = {}
        self._laws: dict[int, SizeModel] = {}
        self._prints: dict[int, str] = {}
        settings = resolve()
        self._learns_sizes = bool(settings.learn_sizes)
        is_kept = is_kept and bool(settings.warm_start)
        self._cache = CostCache(user_cache() / "learned.json") if is_kept else None

    def of(
        self, task: PreparedTask, source: Source, devices: DevicePool
    ) -> tuple[str | None, Mapping[str, Cost], bool]:
        """The size of the items (None: not to be remembered), costs by device, whether they are hearsay."""
        size = None
        if self._cache is not None and source.total is not None and source.n_ready:
            costs = source.costs(0, min(100, source.n_ready))
            size = size_bucket(source.take(range(1))[0], costs, task.batch)
        if task.id in self._costs:
            return size, self._costs[task.id], False
        return size, {} if size is None else self._from_earlier_programs(task, size, devices), True

    def _from_earlier_programs(self, task: PreparedTask, size: str, devices: DevicePool) -> dict[str, Cost]:
        """What earlier programs have measured."""
        cache = self._cache
        if cache is None or not cache.path.exists():
            return {}
        known = cache.known(self._print_of(task), size, devices)
        if cache.damage is not None:
            self._record.note("warning", f"{cache.path} is damaged, and left out: {cache.damage}")
            cache.damage = None
        for device, learned in known.items():
            if learned.ceiling is not None and task.batch is not None and learned.ceiling < task.batch:
                self._ceilings.setdefault((task.id, device), learned.ceiling)
        return {device: one.cost for device, one in known.items() if one.cost is not None}

    def learner_of(self, task: PreparedTask) -> SizeLearner | None:
        """A learner that knows what is known of the sizes of the items; None if none are to be learned."""
        if not self._learns_sizes:
            return None
        law = self._laws.get(task.id)
        if law is None and self._cache is not None and self._cache.path.exists():
            law = self._cache.known_law(self._print_of(task), task.batch)
        return SizeLearner(law)

    def learn(self, run: Run, summary: Summary, devices: DevicePool) -> None:
        """Keep what a finished run has measured."""
        self._costs[run.task.id] = run.costs()
        if run.law is not None:
            self._laws[run.task.id] = run.law
            if self._cache is not None and run.error is None:
                self._cache.learn_law(self._print_of(run.task), run.task.batch, run.law)
        if self._cache is None or run.size is None or run.error is not None:
            return
        for device, cost in run.costs(least_measured=2).items():
            share = summary.devices.get(device)
            is_sure = share is not None and share.busy_s >= WORTH_TELLING_S
            if is_sure and device in devices:
                learned = Learned(cost, self._ceilings.get((run.task.id, device)))
                self._cache.learn(self._print_of(run.task), run.size, devices.device(device), learned)

    def save(self) -> None:
        """Let other programs know."""
        if self._cache is not None:
            self._cache.save()

    def _print_of(self, task: PreparedTask) -> str:
        if task.id not in self._prints:
            from evenload.same_code import fingerprint_code

            self._prints[task.id] = fingerprint_code(task.fn, reads_maps=False)
        return self._prints[task.id]
