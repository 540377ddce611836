"""``DeviceStates``: the devices of a dealer."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import isfinite

from evenload.balance.policy.device_state import DeviceState
from evenload.balance.policy.estimate import Cost, CostEstimate
from evenload.errors import ConfigError, UnknownName


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
