"""Which measured strategy is taken: pure decisions over samples, with less trust in few of them.

Serial training is what a program would have taken anyway, so it loses nothing. Samples of another strategy
are noise for a part: other programs slow it or serial training, and a few clients have other caches than a
whole round. So a strategy has to be better than serial training by more than its samples can be wrong: by
less if they were taken in turns with serial ones, and by least if they were whole rounds.

What several cores gain by the clock is weighed against the CPU time that they take: the strategy with the
least product of the two is taken, so two cores have to save 30 % of the time that one takes. (Circuits and
programs are compared by such products of energy and delay: Horowitz, Indermaur and Gonzalez, Low-power
digital design, 1994.) On a few cores none is taken that may need more CPU time than serial training.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from evenload.clients.values.strategy import Strategy

__all__ = ["Probe", "Proof", "allowed", "believed", "best_of", "compare"]

TIE = 1.02  # within this factor of the best, the one that was measured first is taken: it needs less
FEW = 3  # turns, of which the worst counts for doubts; of more the worst but one
MOST_CPU = (
    1.03  # times serial training's CPU time, that a strategy on several cores may be believed to take ...
)
MANY_TIMES = 3.0  # ... unless it is so many times as fast by the clock


class Proof(IntEnum):
    """The proof of what a strategy takes: samples apart from serial ones, in turns, or rounds in turns."""

    SAMPLES = 0
    TURNS = 1
    ROUNDS = 2


# Times what was measured, that a strategy is taken to cost, by proof: with one that was expected to be faster
# by the model's operations and sizes, with any other, and the CPU time of several cores.
EXPECTED = (1.0, 1.0, 1.0)
UNEXPECTED = (1.5, 1.1, 1.05)
CORES = (2.0, 1.2, 1.02)


@dataclass(slots=True)
class Probe:
    """A measured strategy.

    step_s   seconds per client and step
    first_s  seconds before the first warm step: tracing, compiling, starting threads
    cpu_s    CPU seconds per client and step, of all threads
    proof    how it was compared with serial training
    spread   times its median that it took in the worst turn, or the worst but one of many
    """

    strategy: Strategy
    step_s: float
    first_s: float
    cpu_s: float
    proof: Proof = Proof.SAMPLES
    spread: float = 1.0

    @property
    def cost_s(self) -> float:
        """Between the seconds by the clock and those of all cores: their geometric mean."""
        return math.sqrt(self.step_s * self.cpu_s)


def best_of(probes: Sequence[Probe], expects_fused: bool) -> Probe:
    """The allowed strategy of least believed cost; the first of nearly equal ones. ``probes[0]``: serial."""
    found = allowed(probes)
    costs = [believed(p, expects_fused) * p.cost_s for p in found]
    return next(p for p, cost_s in zip(found, costs, strict=True) if cost_s <= TIE * min(costs))


def believed(probe: Probe, expects_fused: bool) -> float:
    """Times its samples that a strategy is believed to cost: most where these are few and not expected."""
    if probe.strategy == Strategy():
        return 1.0
    if expects_fused or probe.strategy.inner.startswith("rules"):  # rules are written because they are faster
        return EXPECTED[probe.proof]
    return max(UNEXPECTED[probe.proof], probe.spread)


def allowed(probes: Sequence[Probe]) -> list[Probe]:
    """The strategies but for those on several cores that may take more CPU time than serial training."""
    serial = probes[0]
    return [
        p
        for p in probes
        if p.strategy.outer == "inline"
        or p.cpu_s * max(CORES[p.proof], p.spread) <= MOST_CPU * serial.cpu_s
        or MANY_TIMES * p.step_s <= serial.step_s
    ]


def compare(
    near: Sequence[Probe], turns: Sequence[Sequence[tuple[float, float] | None]], proof: Proof
) -> None:
    """Set what strategies take by samples that were taken in turns, from ratios to the first one's samples.

    turns  of each turn the seconds and CPU seconds of each strategy's step, None if it failed. What slows
           a whole turn leaves its ratios alone; the median of these counts, and for doubts the largest, or
           the largest but one of many.
    """
    base = [turn[0] for turn in turns if turn[0] is not None]
    own = [statistics.median(column) for column in zip(*base, strict=True)]
    for at, probe in enumerate(near):
        pairs = [(turn[at], turn[0]) for turn in turns]
        ratios = [(a[0] / b[0], a[1] / b[1]) for a, b in pairs if a is not None and b is not None]
        if len(ratios) < len(turns):
            continue
        step, cpu = (sorted(column) for column in zip(*ratios, strict=True))
        probe.step_s, probe.cpu_s = (o * statistics.median(c) for o, c in zip(own, (step, cpu), strict=True))
        probe.spread = cpu[-1 if len(cpu) <= FEW else -2] / statistics.median(cpu)
        probe.proof = proof
