"""The classic policies: shares dealt in advance, chunks of one size, chunks that shrink by a formula."""

from collections.abc import Sequence
from dataclasses import dataclass

from evenload.balance.partition import STRATEGIES
from evenload.balance.policy.base import Ask, Hold, Take
from evenload.errors import ConfigError, UnknownName

NO_ITEMS = Hold("no item is ready")


@dataclass(frozen=True, slots=True)
class Static:
    """A policy that gives every device its share in advance, as contiguous slices of the input.

    partition  "equal", "proportional" (to the dealer's priors), "dynamic" (the same: the caller gives
               score x free share as priors), or a tuple of counts, one per device
    chunk      items per launch; None is the whole share in one launch
    Items of unknown number are assigned one by one as they arrive, in the same proportions.
    """

    partition: str | tuple[int, ...] = "equal"
    chunk: int | None = 1

    def __post_init__(self) -> None:
        if isinstance(self.partition, str):
            if self.partition not in STRATEGIES:
                raise UnknownName("partition", self.partition, STRATEGIES)
        elif any(count < 0 for count in self.partition):
            raise ConfigError(
                f"partition {self.partition} has a negative count", hint="give one count per device"
            )
        if self.chunk is not None:
            _check_chunk(self.chunk)

    def check_items(self, n: int) -> None:
        """Raise ConfigError if this is a partition by counts of another number of items."""
        if isinstance(self.partition, tuple) and sum(self.partition) != n:
            raise ConfigError(
                f"partition {self.partition} is of {sum(self.partition)} items, but there are {n}",
                hint="let the counts add up to the number of items",
            )

    def shares(self, devices: Sequence[str]) -> str | dict[str, int]:
        """Return the partition, with counts by device: they stay theirs, whichever devices come and go.

        Raises ConfigError if it is by counts for another number of devices.
        """
        if isinstance(self.partition, str):
            return self.partition
        if len(self.partition) != len(devices):
            raise ConfigError(
                f"partition {self.partition} has {len(self.partition)} counts for {len(devices)} devices",
                hint="give one count per device",
            )
        return dict(zip(devices, self.partition, strict=True))

    def init(self) -> None:
        return None

    def step(self, state: None, ask: Ask) -> tuple[None, Take | Hold]:
        if not ask.n_ready:
            return state, Hold("its share is done")
        return state, Take(self.chunk or ask.n_ready, "next of its share")


@dataclass(frozen=True, slots=True)
class Pull:
    """A policy that gives each free device the next ``chunk`` items."""

    chunk: int = 1

    def __post_init__(self) -> None:
        _check_chunk(self.chunk)

    def init(self) -> None:
        return None

    def step(self, state: None, ask: Ask) -> tuple[None, Take | Hold]:
        return state, Take(self.chunk, "next in line") if ask.n_ready else NO_ITEMS


@dataclass(frozen=True, slots=True)
class Guided:
    """A guided self-scheduling: chunks of the items left over the number of devices, ``min_chunk`` at least.

    Source: Polychronopoulos and Kuck, IEEE Transactions on Computers C-36(12), 1987.
    """

    min_chunk: int = 1

    def __post_init__(self) -> None:
        _check_chunk(self.min_chunk)

    def init(self) -> None:
        return None

    def step(self, state: None, ask: Ask) -> tuple[None, Take | Hold]:
        if not ask.n_ready:
            return state, NO_ITEMS
        left = ask.n_ready if ask.n_left is None else ask.n_left
        return state, Take(
            max(self.min_chunk, -(-left // len(ask.devices))), f"1/{len(ask.devices)} of {left} left"
        )


@dataclass(frozen=True, slots=True)
class Factoring:
    """A factoring: half of what is left in equal chunks, one per device, then half of the rest, and so on.

    weighted  each chunk is half of the device's share by measured speed instead
    Sources: FAC2, Hummel, Schonberg and Flynn, CACM 35(8), 1992; weighted: AWF-C, Carino and Banicescu, 2008.
    """

    weighted: bool = False

    def init(self) -> tuple[int, int]:
        """(chunks left of the current half, their size)"""
        return 0, 0

    def step(self, state: tuple[int, int], ask: Ask) -> tuple[tuple[int, int], Take | Hold]:
        if not ask.n_ready:
            return state, NO_ITEMS
        n_devices = len(ask.devices)
        left = ask.n_ready if ask.n_left is None else ask.n_left
        if self.weighted:
            share = _share(ask)
            return state, Take(max(1, round(share * left / 2)), f"half of {share:.0%} of {left} left")
        n_chunks, size = state
        if n_chunks == 0:
            n_chunks, size = n_devices, max(1, -(-left // (2 * n_devices)))
        return (n_chunks - 1, size), Take(size, f"round of {n_devices} chunks of {size}")


def _share(ask: Ask) -> float:
    """This device's share of the devices' speed."""
    speeds = ask.speeds()
    total = sum(speeds.values())
    return speeds[ask.device.name] / total if total else 1.0 / len(speeds)


def _check_chunk(chunk: int) -> None:
    if chunk < 1:
        raise ConfigError(f"a chunk of {chunk} items is refused", hint="use 1 or more")
