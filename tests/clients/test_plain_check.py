"""The check of a user's job against plain torch can fail, and leaves the user's objects as they were."""

import pytest
import torch
import torch.nn.functional as F
from clients import zoo
from torch import nn

from evenload.clients import EarlyStop, Recipe, train
from evenload.clients.training import check_plainly
from evenload.errors import ConfigError, TaskError

RECIPE = Recipe(batch_size=4, epochs=2)


def stateful():
    """A loss that counts its calls, which probes of a model make, too: no two trainings have the same."""
    calls = []

    def loss(outputs, y):
        calls.append(1)
        return F.cross_entropy(outputs, y, reduction="none") * len(calls)

    return loss


@pytest.mark.parametrize("strategy", ["serial", "fused:2"])
@pytest.mark.parametrize("dataset", [zoo.DATASETS[1], zoo.DATASETS[0], zoo.DATASETS[8]], ids=lambda d: d.name)
def test_training_is_held_against_a_plain_loop(dataset, strategy):
    datasets = [dataset.build(n) for n in zoo.SIZES]
    run = train(zoo.seeded_by(zoo.MODELS[0]), datasets, RECIPE, strategy=strategy, check=True)
    assert sum(note.startswith("against plain torch: client") for note in run.plan.notes) == 2


@pytest.mark.parametrize("kind", ["BatchNorm", "a count in an attribute", "gradients masked by a hook"])
def test_a_module_that_was_given_is_put_back(kind):
    model = zoo.seeded_by(next(idiom for idiom in zoo.MODELS if idiom.name == kind))()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    found = check_plainly(model, [zoo.tensors(n) for n in zoo.SIZES], RECIPE, strategy="serial")
    assert all(one.is_equal for one in found)
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert getattr(model, "n", 0) == 0


def test_what_differs_is_said_and_is_an_error():
    """Oracle: a loss that is known to give other numbers in another training."""
    datasets = [zoo.tensors(n) for n in zoo.SIZES]
    recipe = Recipe(batch_size=4, epochs=2, loss=stateful())
    (first, _) = check_plainly(zoo.mlp, datasets, recipe, strategy="serial")
    assert not first.is_equal
    assert "differs by" in str(first)
    assert "from step 0 on" in str(first)
    with pytest.raises(TaskError, match="differs from a plain loop"):
        train(zoo.mlp, datasets, recipe, strategy="serial", check=True)


def test_counted_draws_are_refused():
    model = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5)).double()
    with pytest.raises(ConfigError, match="p=0"):
        check_plainly(model, [zoo.tensors(9)], RECIPE, strategy="serial")


def test_an_early_stop_looks_at_whole_epochs_and_numbers_are_checked():
    stop = EarlyStop(patience=2, min_delta=0.1)
    assert [stop.stops([1.0, 1.0] * n, 2) for n in (1, 2, 3)] == [False, False, True]
    assert not stop.stops([1.0, 1.0] * 3 + [1.0], 2)
    assert not stop.stops([3.0, 2.0, 2.0, 1.0], 1)
    with pytest.raises(ConfigError, match="patience"):
        EarlyStop(patience=0)
