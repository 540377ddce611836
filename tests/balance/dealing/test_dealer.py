"""The dealer keeps its word whatever happens: dealt at least once, reported exactly once, never stuck."""

import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from evenload.balance.dealing.dealer import Deal, Dealer, Wait
from evenload.balance.migrate import LoadBalancer
from evenload.balance.policy import Factoring, Guided, Measured, Pull, Static
from evenload.balance.policy.estimate import Cost
from evenload.errors import ConfigError, UnknownName

NAMES = ["a", "b", "c", "d", "e"]
POLICIES = [
    Measured(),
    Measured(copies=3, keep_free=0, eps=0.5),
    Pull(),
    Pull(3),
    Guided(2),
    Factoring(),
    Factoring(weighted=True),
    Static(),
    Static("proportional", chunk=None),
]


class DealerMachine(RuleBasedStateMachine):
    """Any interleaving of items, results, failures, deaths, comings, goings and changes of policy."""

    @initialize(
        policy=st.sampled_from(POLICIES),
        n_devices=st.integers(1, 4),
        repeatable=st.booleans(),
        uniform=st.booleans(),
        ceiling=st.sampled_from([None, 1, 5]),
        history=st.booleans(),
        balancer=st.booleans(),
    )
    def start(self, policy, n_devices, repeatable, uniform, ceiling, history, balancer):
        self.now = 0.0
        self.here = set(NAMES[:n_devices])
        self.repeatable = repeatable
        self.dealer = Dealer(
            policy,
            NAMES[:n_devices],
            priors={name: place for place, name in enumerate(NAMES)},
            history={"a": Cost(0.1, 0.2)} if history else None,
            repeatable=repeatable,
            uniform=uniform,
            max_chunk=ceiling,
            balancer=LoadBalancer(interval_s=0.0) if balancer else None,
        )
        self.n_added = 0
        self.is_closed = False
        self.open: set[int] = set()  # added, not reported, not forgotten
        self.flights: dict[int, Deal] = {}
        self.struck: set[int] = set()
        self.adrift: set[int] = set()

    # --- what the world does ------------------------------------------------------------------------

    @precondition(lambda self: not self.is_closed)
    @rule(n=st.integers(1, 40))
    def add_range(self, n):
        self.dealer.add_range(self.n_added, n)
        self.open |= set(range(self.n_added, self.n_added + n))
        self.n_added += n

    @precondition(lambda self: not self.is_closed)
    @rule(costs=st.lists(st.none() | st.just(0.0) | st.floats(0, 100), max_size=8))
    def add(self, costs):
        for cost in costs:
            self.dealer.add(self.n_added, cost)
            self.open.add(self.n_added)
            self.n_added += 1

    @precondition(lambda self: not self.is_closed)
    @rule(more=st.integers(0, 30))
    def expect(self, more):
        self.dealer.expect(self.n_added + more)

    @precondition(lambda self: not self.is_closed)
    @rule()
    def close(self):
        self.dealer.close()
        self.is_closed = True

    @rule(device=st.sampled_from(NAMES), prior=st.floats(0.1, 10))
    def join(self, device, prior):
        self.dealer.join(device, self.now, prior)
        self.here.add(device)

    @precondition(lambda self: self.here)
    @rule(pick=st.randoms(use_true_random=False))
    def leave(self, pick):
        device = pick.choice(sorted(self.here))
        self.dealer.leave(device, self.now)
        self.here.discard(device)

    @rule(policy=st.sampled_from(POLICIES))
    def set_policy(self, policy):
        self.dealer.set_policy(policy, self.now)

    @precondition(lambda self: self.here)
    @rule(pick=st.randoms(use_true_random=False), n=st.sampled_from([1, 2, 7, None]))
    def set_ceiling(self, pick, n):
        self.dealer.set_ceiling(pick.choice(sorted(self.here)), n)

    @rule(seconds=st.floats(0, 20))
    def wait(self, seconds):
        self.now += seconds
        self.dealer.tick(self.now)

    @precondition(lambda self: self.here)
    @rule(pick=st.randoms(use_true_random=False))
    def ask(self, pick):
        self.ask_one(pick.choice(sorted(self.here)))

    def ask_one(self, device):
        busy = {deal.device for deal in self.flights.values()}
        if device in busy:
            return None
        answer = self.dealer.next(device, self.now)
        if isinstance(answer, Wait):
            assert answer.why
            assert answer.until is None or answer.until > self.now
            return answer
        assert answer.device == device
        assert answer.why
        assert answer.indices, "an empty chunk"
        assert len(set(answer.indices)) == len(answer.indices)
        assert set(answer.indices) <= self.open, "dealt something that is finished"
        assert answer.chunk not in self.flights
        running = {index for deal in self.flights.values() for index in deal.indices}
        if answer.duplicate:
            assert self.repeatable
            assert set(answer.indices) <= running
            assert not set(answer.indices) & self.struck
        else:
            assert not set(answer.indices) & running
        assert not set(answer.indices) & self.adrift
        self.flights[answer.chunk] = answer
        return answer

    @precondition(lambda self: self.flights)
    @rule(pick=st.randoms(use_true_random=False), seconds=st.floats(0, 10), shows=st.booleans())
    def done(self, pick, seconds, shows):
        self.now += seconds
        self.finish(pick.choice(sorted(self.flights)), seconds / 2 if shows else None)

    def finish(self, chunk, busy_s=None):
        deal = self.flights.pop(chunk)
        first = self.dealer.done(chunk, self.now, busy_s)
        assert list(first) == [index for index in deal.indices if index in self.open]
        self.open -= set(first)
        assert self.dealer.done(chunk, self.now) == ()

    @precondition(lambda self: self.flights)
    @rule(pick=st.randoms(use_true_random=False), alone=st.booleans(), avoids=st.booleans())
    def failed(self, pick, alone, avoids):
        deal = self.flights.pop(pick.choice(sorted(self.flights)))
        redo = [index for index in deal.indices if pick.random() < 0.7]
        avoid = deal.device if avoids else None
        self.dealer.failed(deal.chunk, self.now, redo, alone=alone, avoid=avoid)
        self.open -= set(deal.indices) - set(redo)

    @precondition(lambda self: self.flights)
    @rule(pick=st.randoms(use_true_random=False))
    def lost(self, pick):
        device = pick.choice(sorted(deal.device for deal in self.flights.values()))
        deals = self.dealer.lost(device, self.now)
        mine = [deal for deal in self.flights.values() if deal.device == device]
        assert [deal.chunk for deal in deals] == [deal.chunk for deal in mine]
        for deal in mine:
            del self.flights[deal.chunk]
        running = {index for deal in self.flights.values() for index in deal.indices}
        for deal in mine:
            self.adrift |= (set(deal.indices) & self.open) - running

    @precondition(lambda self: self.adrift)
    @rule(pick=st.randoms(use_true_random=False), alone=st.booleans(), avoid=st.sampled_from([None, *NAMES]))
    def requeue(self, pick, alone, avoid):
        some = [index for index in sorted(self.adrift) if pick.random() < 0.7]
        self.dealer.requeue(some, alone=alone, avoid=avoid)
        self.adrift -= set(some)

    @precondition(lambda self: self.n_added)
    @rule(pick=st.randoms(use_true_random=False), share=st.sampled_from([0.05, 0.5]))
    def forget(self, pick, share):
        some = {index for index in range(self.n_added) if pick.random() < share}
        self.dealer.forget(some)
        self.open -= some
        self.adrift -= some

    @precondition(lambda self: self.n_added)
    @rule(pick=st.randoms(use_true_random=False))
    def strike(self, pick):
        index = pick.randrange(self.n_added)
        self.dealer.strike(index)
        self.struck.add(index)

    # --- what must hold -----------------------------------------------------------------------------

    @invariant()
    def counts_agree(self):
        counters = self.dealer.counters
        assert counters.n_added - counters.n_done - counters.n_forgotten == len(self.open)
        assert self.dealer.is_finished == (self.is_closed and not self.open)
        assert self.dealer.n_in_flight == len(self.flights)
        running = {index for deal in self.flights.values() for index in deal.indices}
        if self.is_closed:
            assert self.dealer.remaining == len(self.open - running)

    @invariant()
    def is_never_stuck(self):
        running = {index for deal in self.flights.values() for index in deal.indices}
        if self.flights or not self.here or not self.open - running - self.adrift:
            return
        answers = [self.ask_one(device) for device in self.dealer.fastest_first(self.here)]
        assert any(isinstance(answer, Deal) for answer in answers)

    def teardown(self):
        if not hasattr(self, "dealer"):
            return
        if not self.is_closed:
            self.close()
        self.dealer.requeue(sorted(self.adrift))
        self.adrift.clear()
        if not self.here:
            self.join("a", 1.0)
        for _ in range(3 * self.n_added + 10):
            if self.dealer.is_finished:
                break
            waits = [self.ask_one(device) for device in sorted(self.here)]
            if not self.flights:  # asked in any order, a wait may be in favour of one who was not asked yet
                self.now = min(wait.until for wait in waits if wait.until is not None)
                for device in sorted(self.here):
                    self.ask_one(device)
            assert self.flights, "work is left, nothing runs, and nobody is given any"
            self.now += 0.5
            self.finish(min(self.flights))
        assert not self.open
        assert isinstance(self.dealer.next(min(self.here), self.now), Wait)


DealerMachine.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
TestDealer = DealerMachine.TestCase


# --- examples --------------------------------------------------------------------------------------


def test_consecutive_items_are_a_range():
    dealer = Dealer(Pull(4), ["a"])
    dealer.add_range(0, 6)
    deal = dealer.next("a", 0.0)
    assert deal == Deal(0, "a", range(4), "next in line")
    dealer.failed(0, 1.0, redo=[1, 2, 3])
    assert dealer.next("a", 1.0).indices == range(1, 5)


def test_an_item_that_avoids_a_device_waits_for_another():
    dealer = Dealer(Pull(), ["a", "b"])
    dealer.add_range(0, 1)
    chunk = dealer.next("a", 0.0).chunk
    dealer.failed(chunk, 1.0, [0], alone=True, avoid="a")
    assert isinstance(dealer.next("a", 1.0), Wait)
    assert dealer.next("b", 1.0).indices == range(1)


def test_items_that_travel_alone_do():
    dealer = Dealer(Pull(4), ["a"])
    dealer.add_range(0, 4)
    dealer.failed(dealer.next("a", 0.0).chunk, 1.0, range(4), alone=True)
    for index in range(4):
        deal = dealer.next("a", 1.0)
        assert deal.indices == range(index, index + 1)
        dealer.done(deal.chunk, 2.0)


def static_shares(dealer: Dealer, devices: list[str]) -> list[list[int]]:
    shares = []
    for device in devices:
        mine = []
        while isinstance(deal := dealer.next(device, 0.0), Deal):
            mine.extend(dealer.done(deal.chunk, 1.0))
        shares.append(mine)
    return shares


def test_static_shares_are_contiguous_slices():
    dealer = Dealer(Static(), ["a", "b", "c"])
    dealer.add_range(0, 10)
    dealer.close()
    assert static_shares(dealer, ["c", "b", "a"]) == [[7, 8, 9], [4, 5, 6], [0, 1, 2, 3]]


def test_static_shares_follow_scores_and_counts():
    dealer = Dealer("static:proportional", ["a", "b"], priors={"a": 95, "b": 80})
    dealer.add_range(0, 1000)
    dealer.close()
    assert [len(share) for share in static_shares(dealer, ["a", "b"])] == [543, 457]
    dealer = Dealer(Static((1, 4)), ["a", "b"])
    dealer.add_range(0, 5)
    dealer.close()
    assert static_shares(dealer, ["a", "b"]) == [[0], [1, 2, 3, 4]]


def test_the_balancer_moves_queued_items_unless_it_is_switched_off():
    dealer = Dealer(Static(), ["a", "b"], balancer=LoadBalancer(interval_s=1.0, max_moves=10))
    dealer.add_range(0, 40)
    dealer.close()
    for _ in range(20):
        dealer.done(dealer.next("a", 0.0).chunk, 0.0)
    assert isinstance(dealer.next("a", 0.0), Wait)
    dealer.set_balancing(False)
    assert dealer.tick(0.5) == ()
    dealer.set_balancing(True)
    (move,) = dealer.tick(1.0)
    assert (move.source, move.target, move.n_items) == ("b", "a", 10)
    assert dealer.counters.n_moved == 10
    assert isinstance(dealer.next("a", 1.0), Deal)
    assert dealer.tick(1.5) == ()


def test_the_decision_log_says_why_and_is_bounded():
    dealer = Dealer("pull", ["a"], log_size=3)
    dealer.add_range(0, 5)
    dealer.close()
    for _ in range(5):
        dealer.done(dealer.next("a", 0.0).chunk, 1.0)
    assert [decision.kind for decision in dealer.decisions] == ["deal"] * 3
    assert all(decision.why for decision in dealer.decisions)


def test_costs_are_per_average_item():
    dealer = Dealer("pull", ["a"])
    for index in range(6):
        dealer.add(index, 2.0)
    dealer.close()
    for step in range(6):
        dealer.done(dealer.next("a", 4.0 * step).chunk, 4.0 * step + 3.0, 2.5)
    cost = dealer.cost("a")
    assert (round(cost.launch_s, 6), round(cost.per_item_s, 6)) == (0.5, 2.5)


def test_faults_of_the_caller_are_named():
    with pytest.raises(ConfigError, match="listed twice"):
        Dealer("pull", ["a", "a"])
    with pytest.raises(UnknownName, match="polll"):
        Dealer("polll", ["a"])
    with pytest.raises(ConfigError, match="at most 0"):
        Dealer("pull", ["a"], max_chunk=0)
    with pytest.raises(ConfigError, match="2 counts for 3"):
        Dealer(Static((1, 2)), ["a", "b", "c"])
    dealer = Dealer(Static((1, 2)), ["a", "b"])
    with pytest.raises(ConfigError, match="of 3 items, but there are 4"):
        dealer.expect(4)
    with pytest.raises(UnknownName, match="device 'z'"):
        dealer.next("z", 0.0)
    for cost in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="size hint"):
            dealer.add(0, cost)


# --- counts in advance, while devices come and go ---------------------------------------------------


@given(
    counts=st.lists(st.integers(0, 6), min_size=2, max_size=4),
    leaving=st.sets(st.integers(0, 3)),
    has_newcomer=st.booleans(),
    is_total_known=st.booleans(),
)
def test_counts_belong_to_the_devices_of_the_beginning(counts, leaving, has_newcomer, is_total_known) -> None:
    """Whoever leaves before the first item is dealt, all items are dealt once, to those with counts."""
    devices = [f"d{n}" for n in range(len(counts))]
    dealer = Dealer(Static(tuple(counts)), devices)
    total = sum(counts)
    if is_total_known:
        dealer.expect(total)
    gone = {f"d{n}" for n in leaving if n < len(counts)} if len(leaving) < len(counts) else set()
    for device in gone:
        dealer.leave(device, 0.0)
    if has_newcomer:
        dealer.join("new", 0.0, prior=50.0)
    dealer.add_range(0, total)
    dealer.close()
    stayed = [device for device in devices if device not in gone]
    dealt: dict[str, int] = dict.fromkeys([*stayed, "new"], 0)
    seen: list[int] = []
    for now in range(10 * total + 10):
        for device in dealt if has_newcomer else stayed:
            deal = dealer.next(device, float(now))
            if isinstance(deal, Deal):
                seen += deal.indices
                dealt[device] += len(deal.indices)
                dealer.done(deal.chunk, now + 0.5)
    assert sorted(seen) == list(range(total))
    if sum(counts[devices.index(device)] for device in stayed):
        assert dealt["new"] == 0, "no count is its own"
    if not gone and is_total_known:
        assert [dealt[device] for device in devices] == counts


def test_a_device_that_comes_back_to_equal_shares_gets_an_equal_share() -> None:
    dealer = Dealer(Static("equal"), ["a", "b"], priors={"a": 90.0, "b": 90.0})
    dealer.add_range(0, 2)
    for device in ("a", "b"):
        deal = dealer.next(device, 0.0)
        assert isinstance(deal, Deal)
        dealer.done(deal.chunk, 1.0)
    dealer.leave("b", 1.0)
    dealer.join("b", 1.0, prior=90.0)
    dealer.add_range(2, 40)
    n_dealt = {"a": 0, "b": 0}
    for device in 40 * ["a", "b"]:
        deal = dealer.next(device, 2.0)
        if isinstance(deal, Deal):
            n_dealt[device] += 1
            dealer.done(deal.chunk, 3.0)
    assert n_dealt == {"a": 20, "b": 20}
