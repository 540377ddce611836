"""``share``: how many samples of a global batch each rank gets, so that all end their part together.

seconds of each rank ──► balance.partition.water_filling ──► counts, and how close to the best possible
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from evenload._arguments import MOST, number, sequence, whole
from evenload.balance.claim import claim, exact
from evenload.balance.partition import equal, water_filling, water_level
from evenload.balance.policy.estimate import Cost
from evenload.errors import ConfigError, quoted

__all__ = ["Cost", "Shares", "cost_of", "share"]

LEAST_S, MOST_S = 1e-9, 1e6
MOST_UNITS = 150_000  # in a certificate
NS = 10**9


@dataclass(frozen=True, slots=True)
class Shares:
    """A division of one global batch over the ranks, with the seconds that it takes.

    counts     [ranks] samples
    costs      [ranks] the seconds that it was made for
    step_s     until the last rank has done its part: the least that whole numbers can reach
    bound_s    the same if samples could be cut at will: no division is below it
    unit       samples that stay together
    """

    counts: tuple[int, ...]
    costs: tuple[Cost, ...]
    step_s: float
    bound_s: float
    unit: int = 1

    @property
    def ratio(self) -> float:
        """``step_s`` over ``bound_s``; 1 is the best possible."""
        return self.step_s / self.bound_s

    @property
    def seconds(self) -> tuple[float, ...]:
        """Seconds of each rank for its part."""
        return tuple(cost.seconds(n) for cost, n in zip(self.costs, self.counts, strict=True))

    @property
    def equal_step_s(self) -> float:
        """Seconds of a step with the same count on every rank, as without shares; memory not looked at."""
        counts = equal(sum(self.counts), len(self.costs))
        return max(cost.seconds(n) for cost, n in zip(self.costs, counts, strict=True))

    def certificate(self, name: str = "step") -> dict[str, Any]:
        """Return the plan of this step as a certificate, for ``json.dumps``.

        An item of it is ``unit`` samples. Its bound is of work and fixed costs alone: limits of memory, and
        that each rank has a sample, are not in it, and so it may be below ``bound_s``. Raises ConfigError for
        more than ``MOST_UNITS`` units.
        """
        n_units = sum(self.counts) // self.unit
        if n_units > MOST_UNITS:
            raise ConfigError(
                f"a certificate of {n_units} units is too long", hint="give share() a larger unit"
            )
        return claim("plan", name, *_evidence(self))


def share(
    global_batch: int,
    seconds: Sequence[Any],
    *,
    most: Sequence[int | None] | None = None,
    unit: int = 1,
    least: int = 1,
) -> Shares:
    """Divide ``global_batch`` samples so that the rank that is done last is done as early as possible.

    seconds  [ranks] of one sample, or ``(fixed_s, per_sample_s)``: a step's cost whatever its size, and more
             for each sample
    most     [ranks] samples that fit into each rank's memory, None for no limit
    unit     samples that stay together, such as a micro-batch: counts are multiples of it
    least    units that every rank gets, as each takes part in every exchange; 0 lets slow ranks have none

    The answer is exact: no whole counts end sooner (greedy for a sum of convex costs, Federgruen and
    Groenevelt 1986). Raises ConfigError if nothing fits, with the global batches that would.
    """
    unit = whole("unit", unit, least=1)
    least = whole("least", least)
    global_batch = whole("global_batch", global_batch, least=1)
    costs = tuple(
        cost_of(f"the cost of rank {rank}", one) for rank, one in enumerate(sequence("seconds", seconds))
    )
    limits = _limits(most, len(costs), unit)
    n_units = _units(global_batch, limits, unit, least)
    launch_s = [cost.launch_s + least * unit * cost.per_item_s for cost in costs]
    per_unit_s = [unit * cost.per_item_s for cost in costs]
    room = [None if limit is None else limit - least for limit in limits]
    n_free = n_units - least * len(costs)
    counts = [unit * (least + n) for n in water_filling(n_free, launch_s, per_unit_s, room)]
    step_s = max(cost.seconds(n) for cost, n in zip(costs, counts, strict=True))
    level_s = max([water_level(n_free, launch_s, per_unit_s, room), *(launch_s if least else ())])
    return Shares(tuple(counts), costs, step_s, min(step_s, level_s), unit)


def cost_of(name: str, given: Any) -> Cost:
    """Return seconds of a sample, or of a step and a sample, as a ``Cost``. Raises ConfigError."""
    if isinstance(given, Cost):
        fixed, per_sample = given.launch_s, given.per_item_s
    elif isinstance(given, tuple | list):
        if len(given) != 2:
            raise ConfigError(f"{name} is {quoted(given)}", hint="give seconds, or (fixed_s, per_sample_s)")
        fixed, per_sample = given
    else:
        fixed, per_sample = 0.0, given
    fixed, per_sample = number(name, fixed), number(name, per_sample, is_zero_allowed=False)
    if not (LEAST_S <= per_sample <= MOST_S and fixed <= MOST_S):
        raise ConfigError(
            f"{name} is {quoted(given)}", hint=f"give {LEAST_S:g} to {MOST_S:g} seconds for a sample"
        )
    return Cost(fixed, per_sample)


def _limits(most: Any, n_ranks: int, unit: int) -> list[int | None]:
    """Units that each rank can have."""
    if not 0 < n_ranks <= MOST:
        raise ConfigError("there are no ranks to divide a batch over", hint="give the seconds of each rank")
    if most is None:
        return [None] * n_ranks
    given = sequence("most", most)
    if len(given) != n_ranks:
        raise ConfigError(f"most has {len(given)} limits for {n_ranks} ranks", hint="give one for each rank")
    return [None if one is None else whole("most", one, least=1) // unit for one in given]


def _units(global_batch: int, limits: Sequence[int | None], unit: int, least: int) -> int:
    """Units of the batch. Raises ConfigError with the batches that can be divided."""
    n_ranks, numbers = len(limits), [limit for limit in limits if limit is not None]
    low = max(least * n_ranks, 1) * unit
    high = sum(numbers) * unit if len(numbers) == n_ranks else None
    small = [rank for rank, limit in enumerate(limits) if limit is not None and limit < least]
    if small:
        raise ConfigError(
            f"rank {small[0]} has too little memory for {least} x {unit} samples",
            hint="give a smaller unit (micro-batch), or leave the rank out",
        )
    fitting = f"from {low}" if high is None else f"from {low} to {high}"
    multiples = f" in steps of {unit}" if unit > 1 else ""
    if global_batch < low or (high is not None and global_batch > high) or global_batch % unit:
        raise ConfigError(
            f"a global batch of {global_batch} cannot be divided over {n_ranks} ranks"
            + (f" in micro-batches of {unit}" if unit > 1 else "")
            + ("" if high is None or global_batch <= high else f": {high} fit into their memory"),
            hint=f"use a global batch {fitting}{multiples}"
            + (", or accumulate gradients over micro-batches" if high and global_batch > high else ""),
        )
    return global_batch // unit


def _evidence(shares: Shares) -> tuple[int, int, dict[str, Any]]:
    """The step in nanoseconds, its bound, and what proves both: each unit a chunk, after the fixed cost."""
    ranks = range(len(shares.counts))
    n_units = sum(shares.counts) // shares.unit
    load = [int(cost.launch_s * NS) for cost in shares.costs]
    # Rounded up, so that a unit takes at least as long as the written speed says.
    unit_ns = [max(1, -int(-Fraction(cost.per_item_s) * shares.unit * NS // 1)) for cost in shares.costs]
    speeds = [NS / ns * (1 + 1e-12) for ns in unit_ns]
    chunks, loads, first = [], [], 0
    for rank in ranks:
        stop = load[rank]
        if shares.counts[rank]:
            loads.append([rank, 0, stop])
        for _ in range(shares.counts[rank] // shares.unit):
            start, stop = stop, stop + unit_ns[rank]
            chunks.append([rank, start, stop, unit_ns[rank], [first, 1], 0, None, True])
            first += 1
    last = max(chunk[2] for chunk in chunks)
    rates = [exact(speed) for speed in speeds]
    bound = min(last, _bound(n_units, load, rates))
    stage = {
        "name": "step", "items": n_units, "speeds": speeds, "load": load, "loads": loads, "needs": [],
        "chunks": chunks,
    }  # fmt: skip
    devices = [{"name": f"rank {rank}", "lanes": 1, "parts": []} for rank in ranks]
    stretch = {"start": 0, "stop": last, "stages": [0], "bound": bound, "prices": [1], "longest": 0}
    return last, bound, {"devices": devices, "stages": [stage], "stretches": [stretch]}


def _bound(n_units: int, load: Sequence[int], rates: Sequence[Fraction]) -> int:
    """Nanoseconds before which all ranks together cannot have done the units."""
    worth, speed, found = Fraction(n_units * NS), Fraction(0), Fraction(0)
    for load_ns, rate in sorted(zip(load, rates, strict=True)):
        if speed and load_ns >= found:
            break
        speed, worth = speed + rate, worth + rate * load_ns
        found = worth / speed
    return int(found)
