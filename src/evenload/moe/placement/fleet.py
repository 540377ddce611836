"""``Fleet``: the GPUs that a placement is for, with their slots, speeds and nodes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenload._arguments import array_of, whole
from evenload.errors import ConfigError, quoted

MOST_GPUS = 1 << 20


@dataclass(frozen=True, slots=True)
class Fleet:
    """GPUs with expert slots; they may differ in slots and speed.

    slots   [GPUs] physical expert slots of each, of every layer; ``even`` shares out a total
    speeds  [GPUs] relative speeds, above 0
    nodes   [GPUs] the node of each
    dead    GPUs that serve nothing: their slots stay empty

    In every ``phy2log`` of a fleet, slot p is on GPU ``p // width``, where ``width`` is the most slots that a
    GPU has; slots that a GPU lacks hold -1.

    Raises ConfigError if lengths differ, there is no GPU or slot, a speed is not above 0 or no GPU is alive.
    """

    slots: tuple[int, ...]
    speeds: tuple[float, ...] = ()
    nodes: tuple[int, ...] = ()
    dead: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "slots", _whole("slots", self.slots))
        object.__setattr__(self, "speeds", _numbers("speeds", self.speeds) or (1.0,) * len(self.slots))
        object.__setattr__(self, "nodes", _whole("nodes", self.nodes) or (0,) * len(self.slots))
        object.__setattr__(self, "dead", frozenset(_whole("dead", self.dead)))
        if not self.slots or min(self.slots) < 0 or not sum(self.slots):
            raise ConfigError(
                f"slots {list(self.slots)} leave nowhere to put an expert", hint="give each GPU its slots"
            )
        if len(self.speeds) != len(self.slots) or len(self.nodes) != len(self.slots):
            raise ConfigError(
                f"{len(self.slots)} GPUs by slots, {len(self.speeds)} by speeds, {len(self.nodes)} by nodes",
                hint="give one of each for every GPU",
            )
        if not all(0 < speed < np.inf for speed in self.speeds):
            raise ConfigError(
                f"speeds {list(self.speeds)}",
                hint="give each GPU a finite speed above 0; name dead ones in dead=",
            )
        if any(not 0 <= gpu < len(self.slots) for gpu in self.dead):
            raise ConfigError(
                f"dead GPUs {sorted(self.dead)} of {len(self.slots)}", hint=f"use 0 to {len(self.slots) - 1}"
            )
        if not any(n and gpu not in self.dead for gpu, n in enumerate(self.slots)):
            raise ConfigError("no GPU with a slot is alive", hint="leave one alive")

    @classmethod
    def even(
        cls,
        n_gpus: int,
        n_slots: int,
        *,
        n_nodes: int = 1,
        speeds: Sequence[float] = (),
        dead: Sequence[int] = (),
    ) -> "Fleet":
        """A fleet of ``n_slots`` in all over ``n_gpus``; the first GPUs have one more if they do not divide.

        Raises ConfigError if the GPUs do not divide over the nodes.
        """
        n_gpus, n_slots, n_nodes = _whole("n_gpus, n_slots and n_nodes", (n_gpus, n_slots, n_nodes))
        if n_gpus >= MOST_GPUS:
            raise ConfigError(f"{n_gpus} GPUs", hint=f"give fewer than {MOST_GPUS}")
        if n_gpus < 1 or n_nodes < 1 or n_gpus % n_nodes:
            raise ConfigError(
                f"{n_gpus} GPUs do not divide over {n_nodes} nodes",
                hint="give nodes of equal size, or nodes=",
            )
        slots = [n_slots // n_gpus + (gpu < n_slots % n_gpus) for gpu in range(n_gpus)]
        nodes = [gpu * n_nodes // n_gpus for gpu in range(n_gpus)]
        return cls(tuple(slots), _numbers("speeds", speeds), tuple(nodes), frozenset(_whole("dead", dead)))

    @property
    def n_gpus(self) -> int:
        return len(self.slots)

    @property
    def n_nodes(self) -> int:
        return len(set(self.nodes))

    @property
    def width(self) -> int:
        """Slots for each GPU in ``phy2log``."""
        return max(self.slots)

    @property
    def n_living_slots(self) -> int:
        return sum(n for gpu, n in enumerate(self.slots) if gpu not in self.dead)

    @property
    def is_even(self) -> bool:
        """Whether all GPUs are equal and alive, as EPLB's policy needs it."""
        return len(set(self.slots)) == 1 and len(set(self.speeds)) == 1 and not self.dead

    def living_speeds(self) -> NDArray[np.float64]:
        """[GPUs] speeds, 0 for a GPU that is dead or has no slot."""
        alive = [n > 0 and gpu not in self.dead for gpu, n in enumerate(self.slots)]
        return np.where(alive, self.speeds, 0.0)

    def open_slots(self) -> NDArray[np.bool_]:
        """[GPUs * width] whether an expert can be put there."""
        counts = np.where([gpu in self.dead for gpu in range(self.n_gpus)], 0, self.slots)
        return (np.arange(self.width)[None] < counts[:, None]).reshape(-1)


def _whole(name: str, values: Iterable[Any]) -> tuple[int, ...]:
    """``values`` as whole numbers. Raises ConfigError for others, such as a mask of booleans."""
    try:
        return tuple(whole(f"one of {name}", one, least=-(1 << 24)) for one in values)
    except TypeError as error:
        raise ConfigError(f"{name} is {quoted(values)}", hint="give whole numbers") from error


def _numbers(name: str, values: Iterable[Any]) -> tuple[float, ...]:
    try:
        return tuple(array_of(name, list(values)).astype(float).reshape(-1).tolist())
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ConfigError(f"{name} is {quoted(values)}", hint="give numbers") from error
