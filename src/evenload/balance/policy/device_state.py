"""``DeviceState``: what a dealer knows of one device."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

from evenload.balance.policy.estimate import Cost, CostEstimate
from evenload.balance.policy.in_flight import ChunkInFlight
from evenload.errors import ConfigError, UnknownName

OVERDUE = 3.0
"""A chunk that has run for this many times its expected seconds cannot be counted on."""


@dataclass(slots=True, eq=False)
class DeviceState:
    """One device as its dealer knows it. Policies read it and never change it.

    prior            relative speed before anything is measured, from a score
    ceiling          most items that one chunk may hold, None without limit
    last_n           items in the last chunk that came back
    last_end_s       when that was
    is_helper        whether it is probably much slower than others: it gets only what it will end in time
    is_here          whether it takes work (False once it has left)
    is_up            whether it has asked for work since it came (or came back)
    refused_version  the dealer's version when this device was last told to wait
    chunks           chunks in flight on it, by number
    """

    name: str
    prior: float = 1.0
    estimate: CostEstimate = field(default_factory=CostEstimate)
    ceiling: int | None = None
    last_n: int = 0
    last_end_s: float = float("-inf")
    is_helper: bool = False
    is_here: bool = True
    is_up: bool = False
    refused_version: int = -1
    chunks: dict[int, ChunkInFlight] = field(default_factory=dict)

    @property
    def is_busy(self) -> bool:
        return bool(self.chunks)

    @property
    def rate(self) -> float | None:
        """Units of work per second, launch not counted; None before the first result."""
        cost = self.estimate.cost
        return None if cost is None else cost.rate

    @property
    def launch_s(self) -> float:
        cost = self.estimate.cost
        return 0.0 if cost is None else cost.launch_s

    def free_at(self, now: float) -> float:
        """When a chunk dealt at ``now`` can begin: not before the last one ended."""
        return max(now, self.last_end_s)

    def end(self, number: int, now: float) -> None:
        """Take out the chunk ``number``, which ended ``now``: chunks behind it could not begin before."""
        del self.chunks[number]
        self.last_end_s = now
        for waiting in self.chunks.values():
            waiting.began_s = max(waiting.began_s, now)

    def is_overdue(self, now: float) -> bool:
        """Whether a chunk that it runs takes far longer than estimated."""
        cost = self.estimate.cost
        if cost is None:
            return False
        return any(now - chunk.began_s > OVERDUE * cost.seconds(chunk.work) for chunk in self.chunks.values())


class DeviceStates:
    """The state of each device by name, in the order that decides ties. Arguments as in ``Dealer``."""

    def __init__(
        self,
        devices: Sequence[str],
        priors: Mapping[str, float],
        history: Mapping[str, Cost],
        helpers: Collection[str],
        *,
        is_uniform: bool,
    ):
        if len(set(devices)) != len(devices):
            raise ConfigError(f"a device is listed twice: {', '.join(devices)}", hint="name each device once")
        self._is_uniform = is_uniform
        self._states: dict[str, DeviceState] = {}
        for device in devices:
            self._add(device, priors.get(device, 1.0), device in helpers, history.get(device))

    def __getitem__(self, device: str) -> DeviceState:
        """Raises UnknownName on a device that never joined."""
        try:
            return self._states[device]
        except KeyError:
            raise UnknownName("device", device, self._states) from None

    def here(self) -> list[DeviceState]:
        """Devices that have come and not left."""
        return [state for state in self._states.values() if state.is_here]

    def join(self, device: str, prior: float, is_helper: bool) -> None:
        """Add a device, or one that comes back."""
        state = self._states.get(device)
        if state is None:
            self._add(device, prior, is_helper, None)
        else:
            state.is_here, state.is_up, state.prior = True, False, _checked_prior(device, prior)
            state.is_helper = is_helper

    def restate(self, device: str, samples: Iterable[tuple[float, float, float | None]]) -> None:
        """Estimate the cost of a device anew; ``samples`` are as ``CostEstimate.observe`` takes them."""
        state = self[device]
        state.estimate = state.estimate.renewed()
        for work, elapsed_s, busy_s in samples:
            state.estimate.observe(work, elapsed_s, busy_s)

    def leave(self, device: str) -> None:
        """Mark a device as gone."""
        state = self[device]
        state.is_here = state.is_up = False

    def set_ceiling(self, device: str, n: int | None) -> None:
        """At most ``n`` items per chunk on this device. Raises ConfigError below 1."""
        if n is not None and n < 1:
            raise ConfigError(f"a chunk of at most {n} items is refused", hint="allow at least 1 per chunk")
        self[device].ceiling = n

    def wake(self, state: DeviceState) -> None:
        """Mark a device as asking for work; a helper that is not measured gets another helper's estimate."""
        state.is_up = True
        if state.is_helper and state.rate is None:
            known = (other.estimate.cost for other in self.here() if other.is_helper)
            cost = next((cost for cost in known if cost is not None), None)
            state.estimate = CostEstimate(cost, whole=self._is_uniform)

    def fastest_first(self, devices: Iterable[str]) -> list[str]:
        """``devices`` by measured speed, then by prior: so that a fast one does not find its work taken."""
        rank = {device: place for place, device in enumerate(self._states)}

        def key(device: str) -> tuple[float, float, int]:
            state = self[device]
            return -(state.rate or 0.0), -state.prior, rank[device]

        return sorted(devices, key=key)

    def is_last_resort(self, state: DeviceState, version: int) -> bool:
        """Whether every other device that may take work has refused it in this ``version`` of the dealer.

        A helper is none while a device that is no helper is here.
        """
        if state.is_helper and not all(other.is_helper for other in self.here()):
            return False
        if state.refused_version == version:
            return True
        others = (other for other in self.here() if other is not state and other.is_up)
        return all(other.refused_version == version for other in others)

    def _add(self, device: str, prior: float, is_helper: bool, history: Cost | None) -> None:
        estimate = CostEstimate(history, whole=self._is_uniform)
        prior = _checked_prior(device, prior)
        self._states[device] = DeviceState(device, prior, estimate, is_helper=is_helper)


def _checked_prior(device: str, prior: float) -> float:
    if not (prior >= 0 and isfinite(prior)):
        raise ConfigError(f"prior {prior} of {device} is not a finite number of at least 0")
    return prior
