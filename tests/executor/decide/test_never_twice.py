"""Whatever happens in whatever order, what may not run twice does not begin twice, and nothing is lost.

The scheduler knows what it is told. Beside it stands a fleet that knows the truth: which items each worker
has begun. Of workers that end, the scheduler is told what an executor could know, no more.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.balance.dealing.dealer import Dealer
from evenload.executor.decide.scheduler import Accept, Fail, Scheduler, Send
from evenload.executor.transport.progress_cell import NOT_BEGUN, PACKING, QUEUED, UNPACKING

DEVICES = ("a", "b", "c")


@dataclass
class Chunk:
    """A chunk at a worker, and how many of its items have begun."""

    send: Send
    n_begun: int = 0
    is_stuck: bool = False

    @property
    def n(self) -> int:
        return len(self.send.items)


@dataclass
class Fleet:
    """Workers, each with up to two chunks, of which it runs the first; and what became of each item."""

    scheduler: Scheduler
    batch: int
    repeatable: bool
    rng: random.Random = field(default_factory=random.Random)
    held: dict[str, list[Chunk]] = field(default_factory=lambda: {device: [] for device in DEVICES})
    begun: Counter[int] = field(default_factory=Counter)
    fates: dict[int, str] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)
    guilty: set[int] = field(default_factory=set)  # items of the call in which a worker ends
    is_unreadable: bool = False  # where the worker was that ended last
    now: float = 0.0

    def settle(self, found: Sequence[object], chunk: Chunk) -> None:
        for one in found:
            if isinstance(one, Accept):
                positions = range(chunk.n) if one.positions is None else one.positions
                assert all(at < chunk.n_begun for at in positions), "accepted, and never begun"
                settled = [one.items[at] for at in positions]
            else:
                assert isinstance(one, Fail)
                settled = list(one.items)
                if one.why == "unknown":
                    assert not self.repeatable, "it could have run again"
                    assert self.is_unreadable or all(self.begun[item] for item in settled), "it never began"
                if one.why == "overtime":
                    assert set(settled) <= self.guilty, "not the ones that ran too long"
                    assert len(settled) == 1 or not self.repeatable, (
                        "of a batch it is not known yet who it was"
                    )
            for item in settled:
                assert item not in self.fates, f"item {item} has two fates"
                self.fates[item] = type(one).__name__

    # --- what may happen --------------------------------------------------------------------------

    def ask(self, device: str, may_wait: bool = True) -> None:
        if device in self.away or len(self.held[device]) > (1 if may_wait else 0):
            return
        bundle, most = self.rng.randint(1, 3), self.rng.choice((None, None, 1, 4))
        answer = self.scheduler.free(device, self.now, bundle, most)
        if isinstance(answer, Send):
            if may_wait and self.rng.random() < 0.05:
                self.scheduler.withdrawn(answer.chunk, self.now)
                self.fates.update(dict.fromkeys(answer.items, "withdrawn"))
            else:
                self.held[device].append(Chunk(answer))

    def begin_one(self, device: str) -> None:
        """Its worker makes the next call: of a batch, or of one item."""
        chunk = self.held[device][0]
        step = 1 if chunk.send.singly else self.batch
        items = chunk.send.items[chunk.n_begun : chunk.n_begun + step]
        self.begun.update(items)
        chunk.n_begun += len(items)
        if not self.repeatable:
            twice = [item for item in items if self.begun[item] > 1]
            assert not twice, f"items {twice} began twice"

    def answer(self, device: str) -> None:
        chunk = self.held[device][0]
        if chunk.n_begun == chunk.n:
            self.held[device].pop(0)
            found = self.scheduler.answered(chunk.send.chunk, self.now, 1e-3, *self.errors(chunk))
            self.settle(found, chunk)

    def errors(self, chunk: Chunk, skipped: int | None = None) -> tuple:
        no_memory, raised = (
            [at for at in range(chunk.n_begun) if self.rng.random() < share] for share in (0.1, 0.2)
        )
        return tuple(no_memory), skipped, tuple(at for at in raised if at not in no_memory)

    def skip(self, device: str) -> None:
        """It answers early: it was told so, or believes it was."""
        chunk = self.held[device].pop(0)
        skipped = chunk.n_begun if chunk.n_begun < chunk.n else None
        self.settle(
            self.scheduler.answered(chunk.send.chunk, self.now, 1e-3, *self.errors(chunk, skipped)), chunk
        )

    def spoil(self, device: str) -> None:
        """Its items cannot be read by the worker, or its results by the executor."""
        chunk = self.held[device][0]
        if chunk.n_begun in (0, chunk.n):
            self.held[device].pop(0)
            self.settle(
                self.scheduler.unreadable(chunk.send.chunk, self.now, is_run=bool(chunk.n_begun)), chunk
            )

    def die(self, device: str, has_lost_answer: bool = False, is_hung: bool = False) -> None:
        """Its worker ends; ``has_lost_answer``: after it has gone on to its second chunk."""
        chunks, self.held[device] = self.held[device], []
        first = chunks[0]
        step = 1 if first.send.singly else self.batch
        if has_lost_answer and len(chunks) == 2 and first.n_begun == first.n:
            self.held[device] = chunks[1:]
            self.begin_one(device)
            self.held[device] = []
            position = PACKING
        elif self.rng.random() < 0.2 and not is_hung:
            position = PACKING  # what it wrote last cannot be read
        elif not first.n_begun:
            position = self.rng.choice((NOT_BEGUN, UNPACKING))
        else:
            position = (first.n_begun - 1) // step * step
        self.is_unreadable = position == PACKING
        is_overtime = position >= 0 and (is_hung or self.rng.random() < 0.5)
        self.guilty = set(first.send.items[position : position + step]) if is_overtime else set()
        for chunk, at in zip(chunks, (position, QUEUED), strict=False):
            self.settle(self.scheduler.died(chunk.send.chunk, device, self.now, at, is_overtime), chunk)

    def get_stuck(self, device: str) -> None:
        chunk = self.held[device][0]
        if chunk.n_begun and not chunk.is_stuck:
            chunk.is_stuck = True
            step = 1 if chunk.send.singly else self.batch
            position = (chunk.n_begun - 1) // step * step
            self.scheduler.stuck(chunk.send.chunk, device, self.now, position)

    def leave(self, device: str) -> None:
        """It gets nothing more, and goes on with what it has."""
        if device not in self.away and len(self.away) < 2:
            self.away.add(device)
            self.scheduler.dealer.leave(device, self.now)

    def come_back(self, device: str) -> None:
        if device in self.away:
            self.away.discard(device)
            self.scheduler.dealer.join(device, self.now)

    def happen(self, what: str, device: str, seed: int) -> None:
        self.now += 0.05
        self.rng.seed(seed)
        if what in ("ask", "leave", "come_back"):
            getattr(self, what)(device)
        elif not self.held[device]:
            self.ask(device)
        elif what == "begin":
            chunk = self.held[device][0]
            self.begin_one(device) if chunk.n_begun < chunk.n else self.answer(device)
        elif what == "hang":
            chunk = self.held[device][0]
            if chunk.n_begun == chunk.n or self.scheduler.is_superseded(chunk.send.chunk):
                return
            self.begin_one(device)
            self.get_stuck(device)
            self.die(device, is_hung=True)
        elif what == "die late":
            self.die(device, has_lost_answer=True)
        else:
            getattr(self, what)(device)

    def check_states(self, known: set[int]) -> None:
        """What the scheduler says of each item is what this fleet has counted by itself."""
        held = {item for chunks in self.held.values() for chunk in chunks for item in chunk.send.items}
        ends = {"Accept": "done", "Fail": "failed", "withdrawn": "skipped"}
        for item in range(self.scheduler.states.n):
            said = self.scheduler.states[item]
            if item in known or item in self.fates:
                assert said == ("done" if item in known else ends[self.fates[item]])
            else:
                assert said in (("running", "on trial") if item in held else ("waiting", "suspect"))

    def end_well(self) -> None:
        """From here on nothing goes wrong."""
        for device in tuple(self.away):
            self.come_back(device)
        for _ in range(3000):
            if self.scheduler.is_finished:
                return
            self.now += 1.0
            for device in DEVICES:
                if not self.held[device]:
                    self.ask(device, may_wait=False)
                elif self.held[device][0].n_begun < self.held[device][0].n:
                    self.begin_one(device)
                else:
                    chunk = self.held[device].pop(0)
                    self.settle(self.scheduler.answered(chunk.send.chunk, self.now, 1e-3), chunk)
        raise AssertionError(f"not finished: {self.fates}, {self.held}")


WHAT = (
    "ask", "ask", "begin", "begin", "begin", "answer", "skip", "spoil", "die", "die late", "get_stuck",
    "hang", "leave", "come_back",
)  # fmt: skip
EVENTS = st.lists(
    st.tuples(st.sampled_from(WHAT), st.sampled_from(DEVICES), st.integers(0, 2**16)), max_size=40
)


@pytest.mark.parametrize("repeatable", [False, True])
@given(data=st.data())
@settings(max_examples=examples(150), deadline=None)
def test_no_order_of_events_runs_twice_what_may_run_once_or_loses_anything(
    repeatable: bool, data: st.DataObject
) -> None:
    n, batch = data.draw(st.integers(1, 16)), data.draw(st.sampled_from((1, 1, 2, 3)))
    policy = data.draw(st.sampled_from(("measured", "pull", "pull:3", "static", "guided")))
    dealer = Dealer(policy, DEVICES, repeatable=repeatable)
    retries = data.draw(st.integers(0, 2))
    scheduler = Scheduler(
        dealer, batch=batch, repeatable=repeatable, max_worker_deaths=50, most_retries=retries
    )
    fleet = Fleet(scheduler, batch, repeatable)
    n_read = data.draw(st.integers(0, n)) // batch * batch  # what a journal knows of is read in whole batches
    known = data.draw(st.sets(st.integers(0, n - 1), max_size=3))
    for start, stop in ((0, n_read), (n_read, n)):
        scheduler.read(stop - start)
        restored = tuple(sorted(item for item in known if start <= item < stop))
        if restored:
            scheduler.restored(restored)
        for event in data.draw(EVENTS):
            fleet.happen(*event)
            fleet.check_states({item for item in known if item < stop})
    scheduler.end_input()
    fleet.end_well()
    assert set(fleet.fates) == set(range(n)) - known
    assert known.isdisjoint(fleet.begun)


@given(
    policy=st.sampled_from(("measured", "pull", "pull:3", "static", "guided")),
    n=st.integers(1, 14),
    batch=st.sampled_from((1, 1, 2, 3, 5)),
    culprits=st.dictionaries(st.integers(0, 13), st.integers(0, 3), max_size=2),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=examples(150), deadline=None)
def test_whoever_ends_workers_is_found_even_if_they_end_a_little_later(
    policy: str, n: int, batch: int, culprits: dict[int, int], seed: int
) -> None:
    """Workers end so many items after the one that hurt them, or with their results: no other item fails."""
    scheduler = Scheduler(Dealer(policy, DEVICES), batch=batch, max_worker_deaths=2)
    scheduler.read(n)
    scheduler.end_input()
    fleet = Fleet(scheduler, batch, True, random.Random(seed))
    for _ in range(60 * n):
        if scheduler.is_finished:
            break
        fleet.now += 1.0
        device = fleet.rng.choice(DEVICES)
        fleet.ask(device, may_wait=False)
        if not fleet.held[device]:
            continue
        chunk = fleet.held[device].pop()
        step = 1 if chunk.send.singly else batch
        chunk.n_begun = chunk.n
        hurt = [(at, culprits[item]) for at, item in enumerate(chunk.send.items) if item in culprits]
        if hurt:
            at = min(at + delay for at, delay in hurt)
            position = at // step * step if at < chunk.n else PACKING
            fleet.settle(fleet.scheduler.died(chunk.send.chunk, device, fleet.now, position), chunk)
        else:
            fleet.settle(fleet.scheduler.answered(chunk.send.chunk, fleet.now, 1e-3), chunk)
    assert fleet.fates == {item: "Fail" if item in culprits else "Accept" for item in range(n)}
