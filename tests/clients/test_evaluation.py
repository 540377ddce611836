"""``evaluate`` gives what a plain loop over the examples does. The oracle is torch's loss and a count."""

import pytest
import torch
from clients import zoo
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from evenload.clients import SGD, Recipe, evaluate, train


def plainly(model, x, y, loss):
    with torch.no_grad():
        outputs = model.eval()(x)
    is_real = y != loss.ignore_index
    right = (outputs.argmax(1) == y) & is_real
    return float(loss(outputs, y)), int(right.sum()) / int(is_real.sum())


@settings(max_examples=examples(30), deadline=None)
@given(
    st.integers(1, 1500),
    st.sampled_from([-100, 0, 1, 2]),
    st.sampled_from([None, zoo.WEIGHT]),
    st.sampled_from([0.0, 0.3]),
)
def test_loss_and_accuracy_are_those_of_the_rows_that_count(n, ignored, weight, smoothing):
    x, y = zoo.tensors(n)
    y[0] = 0 if ignored else 1  # one row counts
    model = zoo.seeded_by(zoo.MODELS[0])()
    loss = nn.CrossEntropyLoss(weight, ignore_index=ignored, label_smoothing=smoothing)
    found = evaluate(model, model.state_dict(), (x, y), Recipe(loss=loss))
    truth = plainly(model, x, y, loss)
    assert (found["loss"], found["accuracy"]) == pytest.approx(truth, abs=1e-12)


@pytest.mark.parametrize("strategy", ["serial", "fused:2"])
def test_accuracy_while_training_leaves_out_the_label_that_the_loss_does(strategy):
    """A step of rate 0 changes nothing: the metric is that of the start."""
    loss = nn.CrossEntropyLoss(ignore_index=1)
    recipe = Recipe(optimizer=SGD(0.0), loss=loss, batch_size=32, metrics=("accuracy",))
    make, data = zoo.seeded_by(zoo.MODELS[0]), [zoo.tensors(n) for n in (30, 20)]
    run = train(make, data, recipe, strategy=strategy)
    truth = [plainly(make(), *rows, loss)[1] for rows in data]
    assert [client.metrics["accuracy"] for client in run] == pytest.approx(truth, abs=1e-12)
