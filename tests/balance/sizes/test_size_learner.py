"""What an item costs is learned from what it is, used while it predicts, and never believed by chance."""

import random
from math import exp, isfinite

import pytest
from examples_count import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evenload.balance.dealing.dealer import Dealer
from evenload.balance.dealing.learned_sizes import BLOCK
from evenload.balance.fleet import ModelDevice
from evenload.balance.policy import Measured
from evenload.balance.simulate import simulate
from evenload.balance.sizes.fit import Samples, fit
from evenload.balance.sizes.size_learner import SizeLearner
from evenload.balance.sizes.size_model import Sample, SizeModel

SPEEDS = {"slow": 1.0, "fast": 8.0}


def drawn(n: int, seed: int, noise: float | None) -> list[Sample]:
    """Items whose time goes by their length within ``noise``, or (None) by nothing."""
    chance = random.Random(seed)
    samples = []
    for at in range(n):
        device = chance.choice(list(SPEEDS))
        length = float(int(exp(chance.gauss(6, 1))))
        work = (
            exp(chance.gauss(0, 1)) if noise is None else length / 400 * chance.uniform(1 - noise, 1 + noise)
        )
        item = {"length": length, "steps": chance.choice([10.0, 20.0]), "position": float(at)}
        samples.append(Sample(device, [item], work / SPEEDS[device]))
    return samples


def learned(samples: list[Sample], remembered: SizeModel | None = None) -> SizeLearner:
    learner = SizeLearner(remembered)
    for sample in samples:
        learner.observe(sample.device, sample.items, sample.item_s)
    return learner


@pytest.mark.parametrize("noise", [0.0, 0.2, 0.5])
def test_the_feature_that_tells_the_time_is_found(noise):
    model = learned(drawn(60, 1, noise)).model
    assert model is not None
    assert next(iter(model.powers)) == "length"
    assert model.powers["length"] == pytest.approx(1, abs=0.2)
    assert str(model).startswith("time grows with length")
    assert model.error == pytest.approx(noise / 3**0.5, abs=0.15)
    ratio = model.size_of({"length": 2000.0}) / model.size_of({"length": 1000.0})
    assert ratio == pytest.approx(2, rel=0.3)


def test_nothing_is_believed_by_chance():
    assert sum(learned(drawn(40, seed, None)).model is not None for seed in range(24)) <= 3


def test_what_was_remembered_is_used_at_once_and_dropped_when_it_is_wrong():
    remembered = SizeModel({"length": 1.0}, -6.0, 0.1, 60)
    assert SizeLearner(remembered).model is remembered
    assert learned(drawn(40, 3, 0.2), remembered).model is not None
    assert learned(drawn(40, 3, None), remembered).model is None


numbers = st.floats(allow_nan=False, allow_infinity=False)


@settings(deadline=None, max_examples=examples(60))
@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.lists(st.dictionaries(st.sampled_from("xyz"), numbers, max_size=3), min_size=1, max_size=2),
            st.floats(0, 1e9),
        ),
        max_size=30,
    )
)
@example([("a", [{"x": 1.7e308}, {"x": 1.7e308}], 1.0), ("a", [{"x": 1.0}], 2.0)] * 15)
def test_whatever_items_are_sizes_are_finite(measured):
    learner = SizeLearner()
    for device, items, item_s in measured:
        learner.observe(device, items, item_s)
        if learner.model is not None:
            assert all(
                learner.model.size_of(item) > 0 and isfinite(learner.model.size_of(item)) for item in items
            )
            assert str(learner.model)
    found = fit(Samples([Sample(*one) for one in measured])) if measured else None
    assert found is None or isfinite(found[1])


# --- in a run ---------------------------------------------------------------------------------------


def run(seed: int, noise: float | None, learner: SizeLearner | None, n: int = 60) -> float:
    chance = random.Random(seed)
    costs = [exp(chance.gauss(0, 1)) for _ in range(n)]
    features = [
        {
            "length": float(
                int(1000 * (cost * chance.uniform(1 - noise, 1 + noise) if noise is not None else 1))
            )
        }
        for cost in costs
    ]
    for at, item in enumerate(features):
        item["position"] = float(at)
    devices = [ModelDevice(f"d{at}", 1.0, (), 0.001) for at in range(8)]
    return simulate(Measured(), devices, costs, features=features, learner=learner).ratio


def mean(ratios: list[float]) -> float:
    return sum(ratios) / len(ratios)


def test_learned_sizes_bring_what_they_promise():
    """Six draws of the table of the docs; ``benchmarks/schedule_simulation.py`` measures it at length."""
    plain = mean([run(seed, 0.2, None) for seed in range(6)])
    learners = [SizeLearner() for _ in range(6)]
    first = mean([run(seed, 0.2, learner) for seed, learner in enumerate(learners)])
    later = mean([run(100 + seed, 0.2, SizeLearner(one.model)) for seed, one in enumerate(learners)])
    assert plain < 0.85
    assert first > 0.9
    assert later > 0.94


@settings(deadline=None, max_examples=examples(40))
@given(st.integers(0, 2500), st.integers(0, 10**6), st.booleans())
def test_every_item_is_dealt_once_whatever_is_learned(n, seed, is_told):
    chance = random.Random(seed)
    remembered = SizeModel({"length": 1.0}, -3.0, 0.1, 9) if is_told else None
    dealer = Dealer("measured", ["a", "b"], learner=SizeLearner(remembered))
    dealer.add_range(0, n)
    dealer.close()
    now, seen = 0.0, []
    sizes = dealer.sizes
    assert sizes is not None
    while not dealer.is_finished:
        sizes.keep_order(chance.random() < 0.1)
        wanted = sizes.wanted()
        assert len(wanted) <= 1.5 * BLOCK
        sizes.describe({item: {"length": float(chance.randrange(99))} for item in wanted})
        for device in ("a", "b"):
            deal = dealer.next(device, now)
            now += chance.random()
            if hasattr(deal, "indices"):
                sizes.describe({item: {"length": float(chance.randrange(99))} for item in deal.indices})
                seen += dealer.done(deal.chunk, now, chance.random())
    assert sorted(seen) == list(range(n))
