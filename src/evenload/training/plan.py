"""``plan_training``: how a global batch would be divided over cards that need not be at hand.

step times, measured on each kind of card ──► cost_through ──┐
or what their data sheets say             ──► sheet_costs  ──┴─► share ──► TrainingPlan
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evenload._arguments import MOST
from evenload.balance.partition import equal
from evenload.errors import ConfigError
from evenload.training.shares import Cost, Shares, share

__all__ = ["Card", "TrainingPlan", "cost_through", "fitting_samples", "plan_training", "sheet_costs"]


@dataclass(frozen=True, slots=True)
class Card:
    """A card that takes part in a training.

    cost  seconds of its part of a step; relative to other cards' if ``TrainingPlan.is_relative``
    most  samples that fit into its memory together with the model, None if that is not known
    """

    id: str
    name: str
    cost: Cost
    most: int | None = None


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """A division of the global batch over cards, beside the equal one of data-parallel training.

    shares       samples of each card, seconds of the step, and its bound
    equal_counts [cards] samples of each with equal shares
    is_relative  speeds are known and seconds are not: only ratios mean something
    """

    cards: tuple[Card, ...]
    shares: Shares
    equal_counts: tuple[int, ...]
    is_relative: bool = False

    @property
    def equal_step_s(self) -> float:
        """Seconds of a step with equal shares: the slowest card's."""
        return max(card.cost.seconds(n) for card, n in zip(self.cards, self.equal_counts, strict=True))

    @property
    def gain(self) -> float:
        """How many times as long a step with equal shares takes; 1 is no gain."""
        return self.equal_step_s / self.shares.step_s

    @property
    def too_small(self) -> tuple[Card, ...]:
        """Cards into whose memory an equal share does not fit."""
        pairs = zip(self.cards, self.equal_counts, strict=True)
        return tuple(card for card, n in pairs if card.most is not None and n > card.most)

    def to_json(self) -> dict[str, Any]:
        """A plain object for ``json.dumps``, with ``"schema": 1``; seconds are null if they are relative."""

        def seconds(value: float) -> float | None:
            return None if self.is_relative else value

        rows = zip(self.cards, self.shares.counts, self.shares.seconds, self.equal_counts, strict=True)
        return {
            "schema": 1,
            "global_batch": sum(self.shares.counts),
            "unit": self.shares.unit,
            "cards": [
                {
                    "id": card.id,
                    "name": card.name,
                    "samples": n,
                    "seconds": seconds(one_s),
                    "busy": one_s / self.shares.step_s,
                    "most_samples": card.most,
                    "fixed_s": seconds(card.cost.launch_s),
                    "per_sample_s": seconds(card.cost.per_item_s),
                    "equal_samples": n_equal,
                }
                for card, n, one_s, n_equal in rows
            ],
            "step_s": seconds(self.shares.step_s),
            "bound_s": seconds(self.shares.bound_s),
            "ratio_to_bound": self.shares.ratio,
            "equal_step_s": seconds(self.equal_step_s),
            "equal_ratio_to_bound": self.equal_step_s / self.shares.bound_s,
            "equal_fits": not self.too_small,
            "gain": self.gain,
        }


def plan_training(
    cards: Sequence[Card], global_batch: int, *, unit: int = 1, is_relative: bool = False
) -> TrainingPlan:
    """Divide ``global_batch`` over ``cards`` so that their step ends as early as possible.

    unit  samples that stay together, such as a micro-batch

    Raises ConfigError as ``share`` does: for a batch that does not fit, with the batches that would.
    """
    costs, most = [card.cost for card in cards], [card.most for card in cards]
    shares = share(global_batch, costs, most=most, unit=unit)
    n_units = equal(sum(shares.counts) // unit, len(cards))
    return TrainingPlan(tuple(cards), shares, tuple(unit * n for n in n_units), is_relative)


def cost_through(times: Sequence[tuple[int, float]]) -> Cost:
    """The cost of a step through one or two measurements, ``(samples, seconds)`` each.

    One says seconds per sample. Two also say what a step costs whatever its size, none if that came out
    below zero: then the larger one says seconds per sample.

    Raises ConfigError for two of the same size, or if the larger took no longer.
    """
    (n, one_s), *others = sorted(times)
    if not others:
        return Cost(0.0, one_s / n)
    n_more, more_s = others[-1]
    if n_more == n or more_s <= one_s:
        raise ConfigError(
            f"a step of {n} samples took {one_s:g} s and one of {n_more} took {more_s:g} s",
            hint="measure two sizes far apart, so that the larger takes longer: 0.06@16 and 0.21@64",
        )
    per_sample_s = (more_s - one_s) / (n_more - n)
    fixed_s = one_s - n * per_sample_s
    return Cost(fixed_s, per_sample_s) if fixed_s >= 0 else Cost(0.0, more_s / n_more)


def sheet_costs(flop_per_s: Sequence[float]) -> list[Cost]:
    """Costs that stand to one another as the cards' data sheets say: 1 per sample on the fastest."""
    return [Cost(0.0, max(flop_per_s) / one) for one in flop_per_s]


def fitting_samples(free_bytes: int, model_bytes: int, sample_bytes: int) -> int:
    """Samples that fit into a card's free memory, beside the model with its gradients and optimizer."""
    return min(MOST, max(0, (free_bytes - model_bytes) // sample_bytes))
