"""``Policy`` and what it takes and returns.

A policy is an immutable value: ``init`` makes its state, ``step`` decides for one free device.

    Ask(device, devices, now, n_left, ...) ──► step(state, ask) ──► (state, Take | Copy | Hold)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from evenload.balance.policy.device_state import DeviceState
from evenload.balance.policy.in_flight import ChunkInFlight
from evenload.errors import ConfigError, quoted


@dataclass(slots=True)
class Ask:
    """A free device's request for work, with all that a policy may decide by.

    device       the one that asks
    devices      all that are here
    now          seconds of any origin
    n_ready      items that could go to this device now
    n_left       items that no device has, those still to come or to be tried again included; None if their
                 number is not known
    work_left    their work in average items, so ``n_left`` without size hints
    item_work    work of an average item now: 1, or near to it
    longest      work of the longest item that could be dealt, None without hints
    shortest     work of the shortest
    may_repeat   whether an item may be dealt twice on purpose
    is_all_dealt  whether every item has been dealt, and none will come or come back by itself
    is_uniform   whether all items cost about the same
    version      counts the changes of the dealer's state
    n_in_flight  chunks that run on any device
    """

    device: DeviceState
    devices: Sequence[DeviceState]
    now: float
    n_ready: int
    n_left: int | None
    work_left: float | None
    item_work: float = 1.0
    longest: float | None = None
    shortest: float | None = None
    may_repeat: bool = True
    is_uniform: bool = False
    version: int = 0
    n_in_flight: int = 0
    is_all_dealt: bool = False

    def speeds(self) -> dict[str, float]:
        """Work per second by device: measured, or the prior in proportion to those that are measured."""
        rates = {device.name: device.rate for device in self.devices}
        measured = [(rate, device.prior) for device in self.devices if (rate := rates[device.name])]
        priors = sum(prior for _, prior in measured)
        scale = sum(rate for rate, _ in measured) / priors if priors else 1.0
        return {device.name: rates[device.name] or device.prior * scale for device in self.devices}


@dataclass(frozen=True, slots=True)
class Take:
    """The answer to run up to ``n`` new items.

    With size hints, they are of ``work`` in all at most, and each of ``at_most``.
    """

    n: int
    why: str
    work: float = float("inf")
    at_most: float = float("inf")


@dataclass(frozen=True, slots=True)
class Copy:
    """The answer to run ``n`` items of ``chunk`` here as well: the last ones that are not copied yet."""

    chunk: ChunkInFlight
    n: int
    why: str


@dataclass(frozen=True, slots=True)
class Hold:
    """The answer to wait; ask again at ``until`` at the latest."""

    why: str
    until: float | None = None


def checked(stepped: Any, policy: Any, ask: Ask) -> tuple[Any, Take | Copy | Hold]:
    """Return what ``step`` of ``policy`` returned. Raises ConfigError if that is no state with an answer.

    Who takes what is not there waits for it.
    """
    state, answer = stepped if type(stepped) is tuple and len(stepped) == 2 else (None, None)
    if isinstance(answer, Hold) and (answer.until is None or _is_number(answer.until)):
        return state, answer
    if isinstance(answer, Take | Copy) and type(answer.n) is int and answer.n >= 1:
        if isinstance(answer, Copy) and _may_copy(answer.chunk, ask):
            return state, answer
        if isinstance(answer, Take) and all(_is_number(b) and b >= 0 for b in (answer.work, answer.at_most)):
            return state, answer if ask.n_ready else Hold("nothing is ready")
    raise ConfigError(
        f"policy {type(policy).__name__} answers {quoted(stepped)}",
        hint="return (state, Take(n, why) or Hold(why) or, of a chunk that another device runs where "
        "`ask.may_repeat`, Copy(chunk, n, why)) from `step`",
    )


def _may_copy(chunk: Any, ask: Ask) -> bool:
    others = (device for device in ask.devices if device is not ask.device)
    return ask.may_repeat and any(chunk is one for device in others for one in device.chunks.values())


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and value == value  # NaN is not itself


class Policy(Protocol):
    """A rule by which items are dealt."""

    def init(self) -> Any:
        """The state before the first step."""
        ...

    def step(self, state: Any, ask: Ask) -> tuple[Any, Take | Copy | Hold]:
        """The new state, and what the device that asks should do."""
        ...
