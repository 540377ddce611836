"""Tests the policies through a dealer and the simulator: each deals as its source says."""

import heapq
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.balance.dealing.dealer import Deal, Dealer
from evenload.balance.fleet import ModelDevice
from evenload.balance.policy import (
    POLICIES,
    Factoring,
    Guided,
    Measured,
    Policy,
    Pull,
    Static,
    policy_from_name,
)
from evenload.balance.policy.estimate import Cost
from evenload.balance.simulate import simulate
from evenload.errors import ConfigError, UnknownName


def chunks_dealt(policy: Policy | str, n_items: int, n_devices: int) -> list[int]:
    """Chunk sizes when equal devices ask in turn."""
    names = [f"d{at}" for at in range(n_devices)]
    dealer = Dealer(policy, names)
    dealer.add_range(0, n_items)
    dealer.close()
    sizes: list[int] = []
    now = 0.0
    while not dealer.is_finished:
        for name in names:
            deal = dealer.next(name, now)
            if isinstance(deal, Deal):
                sizes.append(len(deal.indices))
                dealer.done(deal.chunk, now + len(deal.indices), float(len(deal.indices)))
        now += 1.0
    return sizes


# --- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("measured", Measured()),
        ("measured:0.1", Measured(eps=0.1)),
        ("pull", Pull(1)),
        ("Pull:16", Pull(16)),
        ("guided", Guided()),
        ("guided:4", Guided(4)),
        ("factoring", Factoring()),
        ("factoring:weighted", Factoring(weighted=True)),
        ("static", Static("equal")),
        ("static:proportional", Static("proportional")),
    ],
)
def test_policies_have_names(name, policy):
    assert policy_from_name(name) == policy
    assert policy_from_name(policy) is policy


def test_every_name_makes_a_policy():
    for name in POLICIES:
        assert sorted(range(7)) == sorted(range(sum(chunks_dealt(name, 7, 2))))


def test_typos_are_answered_with_the_nearest_name():
    with pytest.raises(UnknownName, match="mesured") as caught:
        policy_from_name("mesured")
    assert "'measured'" in str(caught.value.hint)
    with pytest.raises(UnknownName, match="partition 'propotional'"):
        policy_from_name("static:propotional")
    with pytest.raises(UnknownName, match="factoring variant"):
        policy_from_name("factoring:heavy")


@pytest.mark.parametrize("name", ["pull:x", "pull:0", "pull:-3", "guided:0", "measured:2", "measured:x"])
def test_arguments_that_make_no_sense_are_refused(name):
    with pytest.raises(ConfigError):
        policy_from_name(name)


@pytest.mark.parametrize(
    "options", [{"growth": 1.0}, {"copies": -1}, {"keep_free": -1}, {"fit": 0.0}, {"doubt": float("nan")}]
)
def test_measured_refuses_values_that_make_no_sense(options):
    with pytest.raises(ConfigError):
        Measured(**options)


# --- the classics ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "n_items", "n_devices", "sizes"),
    [
        (Guided(), 100, 4, [25, 19, 14, 11, 8, 6, 5, 3, 3, 2, 1, 1, 1, 1]),  # the example of the paper
        (Guided(8), 100, 4, [25, 19, 14, 11, 8, 8, 8, 7]),
        (Factoring(), 100, 4, [13] * 4 + [6] * 4 + [3] * 4 + [2] * 4 + [1] * 4),
        (Pull(3), 10, 2, [3, 3, 3, 1]),
        (Static(chunk=None), 10, 3, [4, 3, 3]),
    ],
)
def test_the_classics_deal_what_their_sources_say(policy, n_items, n_devices, sizes):
    assert chunks_dealt(policy, n_items, n_devices) == sizes


def test_weighted_factoring_follows_the_measured_speeds():
    dealer = Dealer(Factoring(weighted=True), ["slow", "fast"])
    dealer.add_range(0, 1000)
    dealer.close()
    slow, fast = dealer.next("slow", 0.0), dealer.next("fast", 0.0)
    dealer.done(fast.chunk, 1.0, 1.0)
    dealer.done(slow.chunk, 3.0 * len(slow.indices) / len(fast.indices), None)
    left = dealer.remaining
    assert len(dealer.next("fast", 3.0).indices) == pytest.approx(0.75 * left / 2, abs=1)


# --- measured --------------------------------------------------------------------------------------


class Fleet:
    """A dealer and devices that take ``launch_s + n / speed``; time passes from result to result."""

    def __init__(self, dealer: Dealer, speeds: dict[str, float], launch_s: float = 0.0):
        self.dealer, self.speeds, self.launch_s = dealer, speeds, launch_s
        self.now = 0.0
        self.ends: list[tuple[float, int, str, float]] = []
        self.idle = set(speeds)
        self.deals: list[Deal] = []
        self.hangs: set[int] = set()

    def ask(self) -> list[Deal]:
        new = []
        for device in self.dealer.fastest_first(self.idle):
            deal = self.dealer.next(device, self.now)
            if isinstance(deal, Deal):
                new.append(deal)
                self.idle.discard(device)
                busy_s = len(deal.indices) / self.speeds[device]
                if not self.hangs.intersection(deal.indices):
                    heapq.heappush(self.ends, (self.now + self.launch_s + busy_s, deal.chunk, device, busy_s))
        self.deals += new
        return new

    def step(self) -> None:
        self.now, chunk, device, busy_s = heapq.heappop(self.ends)
        self.dealer.done(chunk, self.now, busy_s)
        self.idle.add(device)

    def run(self) -> "Fleet":
        self.ask()
        while self.ends and not self.dealer.is_finished:
            self.step()
            self.ask()
        return self


def dealer_of(n_items: int, devices, policy: Policy | None = None, **options) -> Dealer:
    dealer = Dealer(policy or Measured(), list(devices), **options)
    dealer.add_range(0, n_items)
    dealer.close()
    return dealer


@given(st.floats(1e-4, 1.0), st.sampled_from([0.01, 0.05, 0.2]))
def test_steady_chunks_cost_about_eps_in_launches(launch_s, eps):
    speeds = {"a": 100.0, "b": 300.0}
    dealer = dealer_of(10_000_000, speeds, Measured(eps=eps))
    fleet = Fleet(dealer, speeds, launch_s)
    fleet.ask()
    for _ in range(60):
        fleet.step()
        fleet.ask()
    for deal in fleet.deals[-4:]:
        busy_s = len(deal.indices) / speeds[deal.device]
        assert launch_s / busy_s <= eps * 1.001
        assert len(deal.indices) == 1 or launch_s / (busy_s - 1 / speeds[deal.device]) >= eps * 0.999


@settings(deadline=None)
@given(st.integers(1, 2000), st.integers(1, 6), st.floats(1.1, 8.0), st.integers(1, 50))
def test_chunks_respect_growth_and_ceiling(n_items, n_devices, growth, ceiling):
    speeds = {f"d{at}": 10.0 * (at + 1) for at in range(n_devices)}
    dealer = dealer_of(n_items, speeds, Measured(growth=growth), max_chunk=ceiling)
    fleet = Fleet(dealer, speeds, 1.0).run()
    assert dealer.is_finished
    last: dict[str, int] = {}
    for deal in fleet.deals:
        n = len(deal.indices)
        assert n <= ceiling
        if not deal.duplicate:
            assert n <= growth * last.get(deal.device, 1) + 1
            last[deal.device] = n


@given(
    n_items=st.integers(2, 2000),
    n_absent=st.integers(1, 4),
    item_s=st.floats(1e-7, 1e-5),
    launch_s=st.floats(1e-4, 1e-2),
    prior=st.floats(0.1, 10.0),
)
def test_devices_that_are_not_up_yet_do_not_have_tiny_items_sent_one_by_one(
    n_items, n_absent, item_s, launch_s, prior
):
    absent = [f"late{at}" for at in range(n_absent)]
    dealer = Dealer("measured", ["here", *absent], priors={"here": 1.0} | dict.fromkeys(absent, prior))
    dealer.add_range(0, n_items)
    dealer.close()
    now, n_chunks = 0.0, 0
    while not dealer.is_finished:
        deal = dealer.next("here", now)
        assert isinstance(deal, Deal)
        n_chunks += 1
        now += launch_s + len(deal.indices) * item_s
        dealer.done(deal.chunk, now, len(deal.indices) * item_s)
    # Halves of a share of at least 1 / (1 + 10 * n_absent), and a few to begin and to end with.
    share = 0.5 / (1.0 + prior * n_absent)
    assert n_chunks <= 8 + 1.1 * math.log(n_items) / -math.log1p(-share) + 2 / share


def last_alone(policy: Policy, speeds: dict[str, float], **options) -> Fleet:
    """All items but those that hang are done; time then passes, and idle devices ask again and again."""
    dealer = dealer_of(40, speeds, policy, **options)
    fleet = Fleet(dealer, speeds, 0.001)
    fleet.hangs = {38} if len(speeds) < 6 else {37, 38}
    fleet.run()
    for _ in range(100):
        fleet.now += 1.0
        fleet.ask()
    return fleet


def test_what_a_stalled_device_holds_is_begun_elsewhere_in_time():
    """With size hints its item is run again like any other, longest first, and not as the tail of the run."""
    chance = random.Random(5)
    for seed in range(2):
        costs = [chance.lognormvariate(0, 1.0) for _ in range(300)]
        half_s = sum(costs) / 15 / 2
        devices = [ModelDevice(f"d{at}", float(2**at)) for at in range(3)]
        devices.append(ModelDevice("stalls", 8.0, ((half_s, 0.0025),)))
        end = simulate("measured", devices, costs, hints=costs)
        assert end.ratio > 0.97, seed
        assert any("stalled" in decision.why for decision in end.decisions), seed


@pytest.mark.parametrize("n_devices", [1, 2, 3, 4, 5, 6, 8])
def test_items_that_hang_never_take_every_device_of_three_or_more(n_devices):
    speeds = {f"d{at}": 1.0 + at for at in range(n_devices)}
    fleet = last_alone(Measured(copies=8), speeds)
    n_hung = len(fleet.hangs)
    running = [deal for deal in fleet.deals if fleet.hangs.intersection(deal.indices)]
    if n_devices > n_hung + 1:
        assert len({deal.device for deal in running}) < n_devices
    if n_devices > n_hung:  # of two devices the last may copy: nothing else is left for it
        assert any(deal.duplicate for deal in running)


def test_copies_are_limited_and_can_be_forbidden():
    speeds = {f"d{at}": 1.0 + at for at in range(5)}
    count = {2: 2, 1: 1, 0: 0}
    for copies, expected in count.items():
        fleet = last_alone(Measured(copies=copies), speeds)
        assert sum(deal.duplicate and 38 in deal.indices for deal in fleet.deals) == expected
    fleet = last_alone(Measured(), speeds, repeatable=False)
    assert not any(deal.duplicate for deal in fleet.deals)


# --- size hints ------------------------------------------------------------------------------------


def hinted(costs: list[float], devices, **options) -> Dealer:
    dealer = Dealer(Measured(), list(devices), **options)
    for index, cost in enumerate(costs):
        dealer.add(index, cost)
    dealer.close()
    return dealer


def test_the_longest_goes_first_to_the_fastest():
    costs = [1.0, 30.0, 2.0, 1.0, 1.0, 1.0]
    history = {"slow": Cost(0.0, 6.0), "fast": Cost(0.0, 0.6)}
    dealer = hinted(costs, ["slow", "fast"], history=history)
    assert dealer.next("slow", 0.0).indices != range(1, 2)
    assert dealer.next("fast", 0.0).indices == range(1, 2)


# --- arrays ----------------------------------------------------------------------------------------
