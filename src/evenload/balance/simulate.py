"""``simulate``: what a policy would do with items on modelled devices, with the ``Dealer`` of real runs."""

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count
from math import ceil, inf
from typing import Any

from evenload.balance.dealing.dealer import Counters, Deal, Dealer, Decision
from evenload.balance.dealing.learned_sizes import LearnedSizes
from evenload.balance.fleet import ModelDevice, fluid_bound
from evenload.balance.migrate import LoadBalancer
from evenload.balance.policy import Policy
from evenload.balance.policy.estimate import Cost
from evenload.balance.policy.in_flight import Indices
from evenload.balance.sizes.size_learner import SizeLearner
from evenload.balance.sizes.size_model import Features
from evenload.errors import ConfigError

__all__ = ["SimulatedSpan", "Simulation", "simulate"]

# A balancer that moved nothing so often in a row, while nothing happened, never will: it postpones a move for
# one interval at most.
IDLE_TICKS = 3


@dataclass(frozen=True, slots=True)
class SimulatedSpan:
    """A chunk that ran on a modelled device.

    status  ok | superseded (the items were finished elsewhere first) | lost | unfinished
    """

    device: str
    indices: range | tuple[int, ...]
    start_s: float
    stop_s: float
    status: str
    duplicate: bool
    why: str


@dataclass(frozen=True, slots=True)
class Simulation:
    """The outcome of a simulated run.

    bound_s  seconds below which no policy could have come
    """

    makespan_s: float
    bound_s: float
    spans: tuple[SimulatedSpan, ...]
    decisions: tuple[Decision, ...]
    counters: Counters
    n_unfinished: int = 0
    device2busy_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """Bound over makespan: 1 is the best possible."""
        return self.bound_s / self.makespan_s if self.makespan_s > 0 else 1.0


def simulate(
    policy: Policy | str,
    devices: Sequence[ModelDevice],
    costs: Sequence[float],
    *,
    hints: Sequence[float] | None = None,
    priors: Mapping[str, float] | None = None,
    history: Mapping[str, Cost] | None = None,
    repeatable: bool = True,
    balancer: LoadBalancer | None = None,
    uniform: bool = False,
    helpers: Collection[str] = (),
    shows_busy: bool = True,
    features: Sequence[Features] | None = None,
    learner: SizeLearner | None = None,
) -> Simulation:
    """Run ``costs`` (work per item) over ``devices`` as ``policy`` deals them.

    hints       [items] sizes that the policy knows; it never knows the true costs
    features    [items] what the items are, from which ``learner`` learns their sizes
    shows_busy  whether workers report the seconds inside the user's function, as real ones do; otherwise
                launches are part of the elapsed time
    Raises ConfigError on a negative cost or no device; as ``Dealer`` does on the rest.
    """
    return _SimulatedRun(devices, costs, shows_busy, features or ()).go(
        policy,
        hints,
        balancer,
        priors=priors,
        history=history,
        repeatable=repeatable,
        uniform=uniform,
        helpers=helpers,
        learner=learner,
    )


class _SimulatedRun:
    """A discrete-event run: events by time, devices that run chunks, and idle ones."""

    def __init__(
        self,
        devices: Sequence[ModelDevice],
        costs: Sequence[float],
        shows_busy: bool,
        features: Sequence[Features],
    ):
        if not devices:
            raise ConfigError("there is no device to simulate", hint="give at least one")
        if any(not 0 <= cost < inf for cost in costs):
            raise ConfigError("an item's cost is below zero or not finite")
        self.devices = {device.name: device for device in devices}
        self.costs = costs
        self.prefix = list(accumulate(costs, initial=0.0))
        self.shows_busy = shows_busy
        self.features = features
        self.events: list[tuple[float, int, str, str, int]] = []
        self.order = count()
        self.running: dict[int, tuple[Deal, float]] = {}
        self.idle: set[str] = set(self.devices)
        self.spans: list[SimulatedSpan] = []
        self.wake_s = inf
        self.n_idle_ticks = 0

    def go(
        self,
        policy: Policy | str,
        hints: Sequence[float] | None,
        balancer: LoadBalancer | None,
        **options: Any,
    ) -> Simulation:
        dealer = self.dealer = Dealer(policy, list(self.devices), balancer=balancer, **options)
        if hints is None:
            dealer.add_range(0, len(self.costs))
        else:
            for index, hint in enumerate(hints):
                dealer.add(index, hint)
        dealer.close()
        for device in self.devices.values():
            if device.dies_s is not None:
                self._at(device.dies_s, "dies", device.name)
        if balancer is not None:
            self._at(balancer.interval_s, "tick")
        now = self._loop(balancer)
        for deal, start in self.running.values():
            self.spans.append(_span(deal, start, now, "superseded" if dealer.is_finished else "unfinished"))
        bound = max(fluid_bound(list(self.devices.values()), self.prefix[-1]), self._longest_item_s())
        n_left = dealer.counters.n_added - dealer.counters.n_done
        busy = dict.fromkeys(self.devices, 0.0)
        for span in self.spans:
            busy[span.device] += span.stop_s - span.start_s
        return Simulation(
            now if n_left == 0 else inf,
            bound,
            tuple(sorted(self.spans, key=lambda span: span.start_s)),
            tuple(dealer.decisions),
            dealer.counters,
            n_left,
            busy,
        )

    def _loop(self, balancer: LoadBalancer | None) -> float:
        now = 0.0
        self._ask(now)
        while self.events and not self.dealer.is_finished:
            now, _, kind, device, chunk = heapq.heappop(self.events)
            if kind != "tick":
                self.n_idle_ticks = 0
            if kind == "done":
                if chunk not in self.running:
                    continue
                self._finish(chunk, now)
            elif kind == "dies":
                self._kill(device, now)
            elif kind == "back":
                self.dealer.join(device, now)
                self.idle.add(device)
            elif kind == "tick" and balancer is not None:
                self._tick(balancer, now)
            if kind == "wake":
                if now < self.wake_s:
                    continue
                self.wake_s = inf
            self._ask(now)
        return now

    def _tick(self, balancer: LoadBalancer, now: float) -> None:
        """Step the balancer and schedule its next step, unless nothing can change any more."""
        self.n_idle_ticks = 0 if self.dealer.tick(now) else self.n_idle_ticks + 1
        wait_s = balancer.interval_s
        if self.n_idle_ticks >= IDLE_TICKS:
            if not self.events:
                return  # the chunks in flight will never end
            pause_s = self.events[0][0] - now
            wait_s = wait_s * ceil(pause_s / wait_s) if 0 < wait_s < pause_s else pause_s
        self._at(now + max(wait_s, balancer.interval_s), "tick")

    def _ask(self, now: float) -> None:
        if self.dealer.sizes is not None:
            self._describe(self.dealer.sizes, self.dealer.sizes.wanted())
        for device in self.dealer.fastest_first(self.idle):
            answer = self.dealer.next(device, now)
            if isinstance(answer, Deal):
                self.idle.discard(device)
                self._start(answer, now)
            elif answer.until is not None and answer.until < self.wake_s:
                self.wake_s = max(answer.until, now)
                self._at(self.wake_s, "wake")

    def _start(self, deal: Deal, now: float) -> None:
        model = self.devices[deal.device]
        if self.dealer.sizes is not None:
            self._describe(self.dealer.sizes, deal.indices)
        self.running[deal.chunk] = deal, now
        stop = model.finish(now + model.launch_s, self._work(deal.indices))
        if stop < inf:
            self._at(stop, "done", deal.device, deal.chunk)

    def _describe(self, sizes: LearnedSizes, indices: Indices) -> None:
        sizes.describe({index: self.features[index] for index in indices})

    def _finish(self, chunk: int, now: float) -> None:
        deal, start = self.running.pop(chunk)
        busy = now - start - self.devices[deal.device].launch_s if self.shows_busy else None
        first = self.dealer.done(chunk, now, busy)
        self.spans.append(_span(deal, start, now, "ok" if first else "superseded"))
        self.idle.add(deal.device)

    def _kill(self, device: str, now: float) -> None:
        for deal in self.dealer.lost(device, now):
            _, start = self.running.pop(deal.chunk)
            self.spans.append(_span(deal, start, now, "lost"))
            self.dealer.requeue(deal.indices)
        self.idle.discard(device)
        self.dealer.leave(device, now)
        back_s = self.devices[device].back_s
        if back_s is not None:
            self._at(now + back_s, "back", device)

    def _work(self, indices: range | tuple[int, ...]) -> float:
        if isinstance(indices, range):
            return self.prefix[indices.stop] - self.prefix[indices.start]
        return sum(self.costs[index] for index in indices)

    def _longest_item_s(self) -> float:
        longest = max(self.costs, default=0.0)
        return min((device.finish(0.0, longest) for device in self.devices.values()), default=0.0)

    def _at(self, t: float, kind: str, device: str = "", chunk: int = -1) -> None:
        heapq.heappush(self.events, (t, next(self.order), kind, device, chunk))


def _span(deal: Deal, start: float, stop: float, status: str) -> SimulatedSpan:
    return SimulatedSpan(deal.device, deal.indices, start, stop, status, deal.duplicate, deal.why)
