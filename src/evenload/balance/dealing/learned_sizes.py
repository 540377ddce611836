"""``LearnedSizes``: gives waiting items the sizes that a run learns while it goes on."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from evenload.balance.dealing.item_pool import ItemPool
from evenload.balance.policy.device_state import DeviceStates
from evenload.balance.policy.in_flight import ChunkInFlight, ChunksInFlight, Indices
from evenload.balance.sizes.size_learner import SizeLearner
from evenload.balance.sizes.size_model import Features, SizeModel

BLOCK = 1024  # items of the input are put in order among themselves, so that none waits for ever
MOST_ITEMS = 32  # in a chunk from which anything is learned
MOST_RESTATED = 64  # measured chunks of a device by which its speed is stated again


class LearnedSizes:
    """The features of items that wait or run, and the sizes that ``learner`` makes of them.

    Whenever its law changes, all that is counted in sizes is stated again: waiting items, chunks in flight
    and the speed of each device. Without a law every item counts as one, and they are dealt in input order.
    """

    def __init__(self, learner: SizeLearner, pool: ItemPool, chunks: ChunksInFlight, devices: DeviceStates):
        self._learner, self._pool, self._chunks, self._devices = learner, pool, chunks, devices
        self._waiting = pool.backlog
        self._features: dict[int, Features] = {}
        self._measured: dict[str, deque[tuple[Sequence[Features], float, float | None]]] = {}
        self._keeps_order = False

    @property
    def model(self) -> SizeModel | None:
        """The law by which items are dealt now."""
        return self._learner.model

    def wanted(self) -> Indices:
        """The waiting items to ``describe`` now: the next block, once it is known what to make of them."""
        if self.model is None or self._keeps_order or self._waiting.n_sized:
            return ()
        n = self._waiting.n_unsized
        return self._waiting.first_unsized(n if n < 1.5 * BLOCK else BLOCK)

    def describe(self, features: Mapping[int, Features]) -> None:
        """Say what items are that wait or run."""
        self._features.update(features)
        if self.model is not None and not self._keeps_order:
            self._size(features)

    def keep_order(self, on: bool) -> None:
        """Deal in input order, whatever is known, until this is switched off."""
        if on and not self._keeps_order:
            self._pool.unsize()
        self._keeps_order = on

    def observe(self, chunk: ChunkInFlight, elapsed_s: float, busy_s: float | None) -> None:
        """Take in a chunk that has ended; times as in ``CostEstimate.observe``."""
        items = [item for index in chunk.indices if (item := self._features.pop(index, None)) is not None]
        if not 0 < len(items) == len(chunk) <= MOST_ITEMS:
            return
        measured = self._measured.setdefault(chunk.device, deque(maxlen=MOST_RESTATED))
        measured.append((items, elapsed_s, busy_s))
        item_s = (elapsed_s if busy_s is None else busy_s) / len(items)
        if self._learner.observe(chunk.device, items, item_s):
            self._restate()

    def forget(self, indices: Iterable[int]) -> None:
        """Learn nothing from these: they failed, say."""
        for index in indices:
            self._features.pop(index, None)

    def _restate(self) -> None:
        """Have all counted by the law of now."""
        if self.model is None:
            self._pool.unsize()
        elif self._waiting.n_sized:
            self._size(self._waiting.sized())
        for chunk in self._chunks:
            items = [item for index in chunk.indices if (item := self._features.get(index)) is not None]
            chunk.work = self._work(items) if len(items) == len(chunk) else float(len(chunk))
        for device, measured in self._measured.items():
            samples = ((self._work(items), elapsed_s, busy_s) for items, elapsed_s, busy_s in measured)
            self._devices.restate(device, samples)

    def _size(self, indices: Iterable[int]) -> None:
        """Give sizes to those of ``indices`` that wait and were described."""
        model = self.model
        assert model is not None
        known = ((index, self._features.get(index)) for index in indices)
        self._pool.resize({index: model.size_of(item) for index, item in known if item is not None})

    def _work(self, items: Sequence[Features]) -> float:
        return float(len(items)) if self.model is None else self.model.size(items)
