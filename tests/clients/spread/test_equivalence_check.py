"""Tests through training that what cannot be fused is named, and trained serially."""

import pytest
from clients.linear_clients import RECIPE, Cased, model, pair

from evenload.clients import SGD, Recipe, Trainer, train
from evenload.clients.spread.equivalence_check import difference


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("branch", "the model acts on a tensor's value"),
        ("item", "the model acts on a tensor's value"),
        ("noise", "draws random numbers by itself"),
        ("shape", "boolean indexing"),
        ("batch", "away from serial"),
    ],
)
def test_what_cannot_be_fused_is_named_and_trained_serially(how, reason):
    """ "batch" can be run by vmap, but padding rows would enter its mean: only the comparison finds that."""
    data = [pair(n, seed=n) for n in (9, 6, 5)]
    run = train(lambda: Cased(how), data, RECIPE, strategy="fused:3")
    serial = train(lambda: Cased(how), data, RECIPE, strategy="serial")
    assert run.plan.strategy.inner == "eager"
    assert reason in run.plan.reasons["fused"], run.plan.explain()
    assert reason in run.plan.why
    assert max(difference(a.state, b.state) for a, b in zip(run, serial, strict=True)) == 0


@pytest.mark.parametrize(
    ("sizes", "kwargs"),
    [((8, 6, 4), {}), ((9, 9), {"steps": 4}), ((8, 8, 8, 7), {}), ((9, 8, 5), {"steps": 9})],
)
def test_a_short_batch_is_always_among_what_is_checked(sizes, kwargs):
    recipe = Recipe(optimizer=SGD(0.1), batch_size=4, **kwargs)
    data = [pair(n, seed=n) for n in sizes]
    run = train(lambda: Cased("batch"), data, recipe, strategy="fused:3")
    serial = train(lambda: Cased("batch"), data, recipe, strategy="serial")
    assert "away from serial" in run.plan.why
    assert max(difference(a.state, b.state) for a, b in zip(run, serial, strict=True)) == 0


def test_a_verdict_on_full_batches_does_not_serve_short_ones():
    full, short = [pair(8, seed=i) for i in range(4)], [pair(n, seed=n) for n in (8, 7, 6, 5)]
    with Trainer(lambda: Cased("batch"), strategy="fused:4") as trainer:
        assert trainer.train(full, RECIPE).plan.strategy.inner == "fused"
        assert trainer.train(short, RECIPE).plan.strategy.inner == "eager"


def test_an_augmentation_whose_numbers_depend_on_padding_is_not_fused():
    recipe = Recipe(optimizer=SGD(0.1), batch_size=4, augment=lambda x, draws: x + draws.uniform(5, len(x)).T)
    run = train(model, [pair(n, seed=n) for n in (8, 6, 4)], recipe, strategy="fused:3")
    assert "away from serial" in run.plan.why
