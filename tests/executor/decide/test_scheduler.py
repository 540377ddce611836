"""Whatever happens to the workers, every item meets exactly one fate: faults as lists of calls."""

import itertools
from dataclasses import dataclass, field

import pytest
from examples_count import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evenload.balance.dealing.dealer import Dealer
from evenload.executor.decide.scheduler import Accept, Fail, Rest, Scheduler, Send
from evenload.executor.transport.progress_cell import NOT_BEGUN, PACKING, UNPACKING

DEVICES = ("a", "b", "c")


@dataclass
class World:
    """Workers that do what their items make them do. ``bad`` maps an item to: kill, hang, spoil or memory."""

    scheduler: Scheduler
    batch: int = 1
    bad: dict[int, str] = field(default_factory=dict)
    now: float = 0.0
    held: dict[str, Send] = field(default_factory=dict)
    fates: dict[int, str] = field(default_factory=dict)
    begun: list[int] = field(default_factory=list)
    n_deaths: int = 0
    gone: set[str] = field(default_factory=set)

    def ask(self, device: str) -> None:
        answer = self.scheduler.free(device, self.now)
        if isinstance(answer, Send):
            assert answer.device == device
            assert len(set(answer.items)) == len(answer.items) > 0
            self.held[device] = answer
        else:
            assert isinstance(answer, Rest)

    def finish(self, device: str, accident: str | None = None) -> None:
        """Let what ``device`` holds come to its end, by itself or by an ``accident`` from outside."""
        send = self.held.pop(device)
        items = list(send.items)
        if not send.singly and any(self.bad.get(item) == "spoil" for item in items):
            self.note(self.scheduler.unreadable(send.chunk, self.now, is_run=False))
            return
        step = 1 if send.singly else self.batch
        no_memory = []
        for start in range(0, len(items), step):
            part = items[start : start + step]
            self.begun += part
            evil = [self.bad[item] for item in part if item in self.bad]
            if "kill" in evil or "hang" in evil or accident == "dies":
                self.die(device, send.chunk, start, "hang" in evil and "kill" not in evil)
                return
            no_memory += [start + at for at, item in enumerate(part) if self.bad.get(item) == "memory"]
        if accident == "dies while packing":
            self.die(device, send.chunk, PACKING, False)
        elif accident == "is dropped":
            n = len(items) // step // 2 * step  # of those, results are there
            short = tuple(at for at in no_memory if at < n)
            found = self.scheduler.answered(send.chunk, self.now, 0.0, short, skipped=n)
            self.note(found, items)
        else:
            found = self.scheduler.answered(send.chunk, self.now, 1e-3, tuple(no_memory))
            self.note(found, items)

    def die(self, device: str, chunk: int, position: int, is_overtime: bool) -> None:
        self.n_deaths += 1
        self.note(self.scheduler.died(chunk, device, self.now, position, is_overtime))

    def note(self, instructions: list, items: list[int] | None = None) -> None:
        for one in instructions:
            if isinstance(one, Accept):
                assert items is not None
                settled = one.items if one.positions is None else [one.items[p] for p in one.positions]
                why = "accepted"
            else:
                assert isinstance(one, Fail)
                settled, why = one.items, one.why
            for item in settled:
                assert item not in self.fates, "two fates"
                self.fates[item] = why

    def run(self, draw=None, n_steps: int = 2000) -> None:
        for _ in range(n_steps):
            if self.scheduler.is_finished:
                return
            self.now += 0.01
            for device in DEVICES:
                if device not in self.held and device not in self.gone:
                    self.ask(device)
            if self.held:
                holders = sorted(self.held)
                self.finish(holders[draw(len(holders)) if draw else 0])
        raise AssertionError(f"not finished: {self.fates}, held {self.held}")


def make(policy="measured", n=10, batch=1, feed=True, costs=None, devices=DEVICES, **options) -> World:
    dealer = Dealer(policy, devices, repeatable=options.get("repeatable", True))
    scheduler = Scheduler(dealer, batch=batch, **options)
    if feed:
        scheduler.expect(n)
        scheduler.read(n, costs)
        scheduler.end_input()
    return World(scheduler, batch)


bad_items = st.dictionaries(
    st.integers(0, 19), st.sampled_from(["kill", "hang", "spoil", "memory"]), max_size=4
)


@given(
    st.sampled_from(["measured", "pull", "pull:5", "static", "guided"]),
    st.integers(0, 20),
    st.integers(1, 4),
    st.booleans(),
    bad_items,
    st.booleans(),
    st.data(),
)
@settings(max_examples=examples(150), deadline=None)
def test_every_item_meets_the_fate_it_deserves(policy, n, batch, repeatable, bad, with_costs, data) -> None:
    costs = [1.0 + i % 3 for i in range(n)] if with_costs else None
    world = make(policy, n, batch, costs=costs, repeatable=repeatable)
    world.bad = {item: evil for item, evil in bad.items() if item < n}
    draws = iter(data.draw(st.lists(st.integers(0, 10**6), min_size=60, max_size=60)))
    world.run(lambda m: next(draws, 0) % m)
    assert sorted(world.fates) == list(range(n))
    for item, fate in world.fates.items():
        evil = world.bad.get(item)
        if repeatable:
            expected = {"kill": "died", "hang": "overtime"}.get(evil or "", "accepted")
            assert fate == expected
        elif evil is None:
            assert fate in ("accepted", "unknown", "overtime")  # the last two with a bad one in its batch
    if not repeatable:
        assert all(world.begun.count(item) == 1 for item in range(n) if world.bad.get(item) != "spoil")


@given(st.data(), st.booleans(), st.integers(1, 3))
@settings(max_examples=examples(120), deadline=None)
def test_accidents_anywhere_lose_nothing_and_double_nothing(data, repeatable, batch) -> None:
    n = data.draw(st.integers(1, 15))
    stuck: set[int] = set()
    world = make("measured", n, batch, repeatable=repeatable, max_worker_deaths=10**6)
    for _ in range(60):
        if world.scheduler.is_finished:
            break
        world.now += 0.01
        kinds = ["ask", "ask", "finish", "finish", "dies", "packing", "drop", "leave", "stuck"]
        what = data.draw(st.sampled_from(kinds))
        device = data.draw(st.sampled_from(DEVICES))
        if what == "ask" and device not in world.held and device not in world.gone:
            world.ask(device)
        elif what == "leave" and len(world.gone) < 2 and device not in world.gone:
            world.scheduler.dealer.leave(device, world.now)
            world.gone.add(device)
        elif device in world.held:
            send = world.held[device]
            if what == "stuck" and repeatable and len(send.items) > batch and send.chunk not in stuck:
                stuck.add(send.chunk)
                position = data.draw(st.integers(0, len(send.items) - 1)) // batch * batch
                world.scheduler.stuck(send.chunk, device, world.now, position)
                continue
            accidents = {"dies": "dies", "packing": "dies while packing"}
            if what == "drop" and world.scheduler.is_superseded(world.held[device].chunk):
                world.finish(device, "is dropped")
            else:
                world.finish(device, accidents.get(what))
    for device in sorted(world.gone):
        world.scheduler.dealer.join(device, world.now)
    world.gone.clear()
    world.run()
    assert sorted(world.fates) == list(range(n))
    if repeatable:
        assert set(world.fates.values()) <= {"accepted", "died"}
        assert "died" not in world.fates.values() or stuck
    else:
        assert all(world.begun.count(item) <= 1 for item in range(n))


@given(
    st.sampled_from(["measured", "pull", "pull:5", "static", "guided"]),
    st.integers(0, 20),
    st.integers(1, 4),
    st.sets(st.integers(0, 19)),
    bad_items,
    st.booleans(),
    st.booleans(),
)
@example("guided", 15, 2, {0, 1, 2}, {7: "hang"}, False, False)
@settings(max_examples=examples(150), deadline=None)
def test_what_is_known_never_runs_and_the_rest_meets_its_fate(
    policy, n, batch, known, bad, with_costs, in_pieces
) -> None:
    world = make(policy, n, batch, feed=False)
    known, world.bad = {item for item in known if item < n}, bad
    world.scheduler.expect(n)
    for start in range(0, n, piece := 2 * batch if in_pieces else n + 1):
        stop = min(start + piece, n)
        world.scheduler.read(
            stop - start, [1.0 + item for item in range(start, stop)] if with_costs else None
        )
        there = tuple(sorted(item for item in known if start <= item < stop))
        world.scheduler.restored(there) if there else None
        if start == 0:
            world.ask(DEVICES[0])
    world.scheduler.end_input()
    world.run()
    assert set(world.fates) == set(range(n)) - known
    assert known.isdisjoint(world.begun)
    for item, fate in world.fates.items():
        assert fate == {"kill": "died", "hang": "overtime"}.get(bad.get(item, ""), "accepted")


def test_a_worker_killed_once_costs_nothing_but_a_retry_elsewhere() -> None:
    world = make("pull", 4)
    world.ask("a")
    world.ask("b")
    world.die("a", world.held.pop("a").chunk, 0, False)
    assert world.fates == {}
    assert world.scheduler.retries == {"died": 1}
    world.ask("a")
    assert 0 not in world.held["a"].items, "goes elsewhere while there is another"
    world.run()
    assert set(world.fates.values()) == {"accepted"}


def test_an_item_too_large_for_one_device_is_tried_on_another_once() -> None:
    world = make("pull:2", 2)
    world.ask("a")
    world.bad = {1: "memory"}
    world.finish("a")
    assert world.fates == {0: "accepted"}
    world.ask("a")
    assert "a" not in world.held
    world.ask("b")
    assert list(world.held["b"].items) == [1]
    world.finish("b")
    assert world.fates[1] == "accepted", "the answer, here its failure, is final"


def test_an_item_too_large_for_a_device_goes_to_larger_ones_only() -> None:
    sizes = dict(zip(DEVICES, (8, 16, 8), strict=False))
    world = make("pull", n=1, memory_bytes=sizes)
    tried = []
    world.bad = {0: "memory"}
    for _ in range(10):
        for device in (DEVICES[0], DEVICES[2], DEVICES[1]):
            if not world.scheduler.is_finished:
                world.ask(device)
            if device in world.held:
                tried.append(device)
                world.finish(device)
    assert tried == [DEVICES[0], DEVICES[1]]
    assert world.fates == {0: "accepted"}, "with its memory error"
    assert world.scheduler.retries == {"memory": 1}


def test_an_item_that_raises_is_tried_again_elsewhere_after_a_growing_pause() -> None:
    world = make("pull", n=1, most_retries=2)
    tried: list[tuple[str, float]] = []
    world.now = 1.0
    while not world.scheduler.is_finished:
        dues = []
        for device in DEVICES:
            if world.scheduler.is_finished:
                break
            answer = world.scheduler.free(device, world.now)
            if isinstance(answer, Send):
                tried.append((device, world.now))
                found = world.scheduler.answered(answer.chunk, world.now, 1e-3, raised=(0,))
                world.note(found, [0])
            elif answer.until is not None:
                dues.append(answer.until)
        world.now = min(dues, default=world.now)
    assert [device for device, _ in tried] == ["a", "b", "c"], "first where it has not failed"
    assert [round(b[1] - a[1], 3) for a, b in itertools.pairwise(tried)] == [0.1, 0.2]
    assert world.fates == {0: "accepted"}, "with its error"
    assert world.scheduler.retries == {"raised": 2}


def test_an_item_that_is_tried_again_elsewhere_is_not_copied_to_where_it_failed() -> None:
    """However long the second try takes: another failure of the first device would be the end."""
    world = make("measured", n=1, most_retries=1)
    first = world.scheduler.free("a", world.now)
    found = world.scheduler.answered(first.chunk, world.now, 1e-3, raised=(0,))
    world.note(found, [0])
    world.now = 1.0
    second = world.scheduler.free("b", world.now)
    assert isinstance(second, Send)
    for seconds in (1.0, 100.0, 10_000.0):
        for device in ("a", "c"):
            answer = world.scheduler.free(device, world.now + seconds)
            assert isinstance(answer, Rest)
    world.note(world.scheduler.answered(second.chunk, world.now, 1e-3), [0])
    assert world.scheduler.is_finished


@given(st.integers(1, 12), st.integers(1, 3), st.integers(0, 2), st.data())
@settings(max_examples=examples(80), deadline=None)
def test_items_that_raise_now_and_then_all_meet_their_fate(n, batch, most_retries, data) -> None:
    world = make("measured", n, batch, most_retries=most_retries)
    for _ in range(400):
        if world.scheduler.is_finished:
            break
        world.now += 0.2
        for device in DEVICES:
            world.ask(device)
            send = world.held.pop(device, None)
            if send is not None:
                raised = tuple(at for at in range(len(send.items)) if data.draw(st.booleans()))
                found = world.scheduler.answered(send.chunk, world.now, 1e-3, raised=raised)
                world.note(found, list(send.items))
            if world.scheduler.is_finished:
                break
    assert sorted(world.fates) == list(range(n))
    assert world.scheduler.retries["raised"] <= n * most_retries


@pytest.mark.parametrize("position", [NOT_BEGUN, UNPACKING])
def test_what_had_not_begun_may_run_even_if_nothing_may_run_twice(position: int) -> None:
    world = make("pull:3", 3, repeatable=False)
    world.ask("a")
    world.die("a", world.held.pop("a").chunk, position, False)
    assert world.fates == {}
    world.run()
    assert set(world.fates.values()) == {"accepted"}


def test_what_had_begun_has_an_unknown_outcome_if_nothing_may_run_twice() -> None:
    world = make("pull:4", 4, repeatable=False)
    world.ask("a")
    world.die("a", world.held.pop("a").chunk, 2, False)
    assert world.fates == {0: "unknown", 1: "unknown", 2: "unknown"}
    world.run()
    assert world.fates[3] == "accepted"


def test_a_duplicate_that_comes_second_changes_nothing() -> None:
    world = make("measured", 2)
    for device in ("a", "b"):
        world.ask(device)
        world.now += 0.001
    world.finish("a")
    world.now += 5.0  # b is overdue: a copy of its item goes to a
    world.ask("a")
    assert list(world.held["a"].items) == list(world.held["b"].items) == [1]
    assert world.held["a"].duplicate
    world.finish("a")
    assert world.scheduler.is_superseded(world.held["b"].chunk)
    assert world.scheduler.is_finished
    world.finish("b")
    assert world.fates == {0: "accepted", 1: "accepted"}


def test_items_come_late_and_in_batches() -> None:
    world = make(n=0, batch=4, feed=False)
    world.scheduler.read(3)
    world.ask("a")
    assert not world.held, "half a batch waits"
    world.scheduler.read(2)
    world.ask("a")
    assert list(world.held["a"].items) == [0, 1, 2, 3]
    world.scheduler.end_input()
    world.run()
    assert sorted(world.fates) == list(range(5))


def test_neighbours_of_a_stuck_item_run_elsewhere() -> None:
    world = make("pull:4", 4)
    world.ask("a")
    world.scheduler.stuck(world.held["a"].chunk, "a", 1.0, 1)
    while sorted(world.fates) != [0, 2, 3]:
        world.ask("b")
        assert 1 not in world.held["b"].items
        world.finish("b")
    assert not world.scheduler.is_finished
    chunk = world.held["a"].chunk
    assert not world.scheduler.is_superseded(chunk)
    found = world.scheduler.answered(chunk, 2.0, 1.0, (), skipped=2)
    world.note(found, [0, 1, 2, 3])
    assert world.fates[1] == "accepted"
    assert world.scheduler.is_finished


@pytest.mark.parametrize("is_overtime", [True, False])
@pytest.mark.parametrize("most", [1, 2])
def test_a_stuck_item_that_ends_its_worker_is_given_up_as_any_other(is_overtime: bool, most: int) -> None:
    world = make("pull:4", 4, max_worker_deaths=most)
    world.ask("a")
    chunk = world.held.pop("a").chunk
    world.scheduler.stuck(chunk, "a", 1.0, 1)
    world.note(world.scheduler.died(chunk, "a", 2.0, 1, is_overtime))
    world.run()
    assert world.fates.pop(1) == ("overtime" if is_overtime else "died" if most == 1 else "accepted")
    assert world.fates == {0: "accepted", 2: "accepted", 3: "accepted"}


@pytest.mark.parametrize("end", ["copied", "died", "overtime", "late"])
def test_a_stuck_item_is_copied_when_nothing_else_is_left(end: str) -> None:
    world = make(n=6, devices=("a", "b"))
    world.ask("a")
    world.finish("a")
    world.ask("a")
    held = world.held.pop("a")
    world.scheduler.stuck(held.chunk, "a", world.now, 0)
    stuck = held.items[0]
    while "b" not in world.held or stuck not in world.held["b"].items:
        world.now += 1.0
        world.ask("b")
        if "b" in world.held and stuck not in world.held["b"].items:
            world.finish("b")
    assert world.held["b"].duplicate
    assert len(world.fates) == 5, "the copy came last"
    if end == "late":
        world.note(world.scheduler.answered(held.chunk, world.now, 9.0), list(held.items))
    elif end != "copied":
        found = world.scheduler.died(held.chunk, "a", world.now, 0, end == "overtime")
        world.note(found)
        assert world.fates.get(stuck) == ("overtime" if end == "overtime" else None), "the copy decides"
    world.finish("b")
    assert world.fates[stuck] == ("overtime" if end == "overtime" else "accepted")
    assert world.scheduler.is_finished
