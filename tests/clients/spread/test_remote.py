"""Clients that travel to a worker in another process and back."""

import dataclasses
import pickle

import cloudpickle
import pytest
import torch
import torch.nn.functional as F
from clients.linear_clients import model, own_loss, pair, tasks_of

from evenload.clients import SGD, Recipe, Strategy, train
from evenload.clients.spread.equivalence_check import difference
from evenload.clients.spread.remote import (
    RemoteClientWorker,
    SentModel,
    _arrays,
    _tensors,
    received,
    sent_recipe,
    sent_task,
)
from evenload.clients.step.dropout import with_keyed_dropout
from evenload.clients.step.model_traits import find_traits
from evenload.devices import CurrentDevice


def remote_worker(net, strategy=Strategy(), traits=None):  # noqa: B008
    return RemoteClientWorker(
        CurrentDevice("cpu:0", "cpu", 1), model=SentModel(net), strategy=strategy, traits=traits, threads=1
    )


def test_a_group_in_another_process_sends_back_who_ended_before_the_trouble():
    recipe = Recipe(optimizer=SGD(0.1), batch_size=4, loss=own_loss)
    net, data = with_keyed_dropout(model()), [pair(8, seed=i) for i in range(3)]
    data[1] = (data[1][0], data[1][1] + 1000)
    tasks = tasks_of(net, data, recipe)
    worker = remote_worker(net, Strategy(inner="fused", chunk=1), find_traits(net, tasks[0]))
    ended, trouble = worker([sent_task(task, sent_recipe(task.recipe)) for task in tasks])
    assert [received(one).client for one in ended] == [0]
    assert "out of bounds" in str(trouble)
    with pytest.raises(RuntimeError, match="out of bounds"):  # nobody ended: it is the executor's to tell
        worker([sent_task(tasks[1], sent_recipe(tasks[1].recipe))])


def test_labels_that_are_ignored_are_no_examples_in_another_process_either():
    """The oracle is training here, which counts an accuracy over the other labels alone."""
    x, y = pair(8)
    y[::2] = -100
    recipe, net = Recipe(optimizer=SGD(0.1), batch_size=4, metrics=("accuracy",)), with_keyed_dropout(model())
    tasks = tasks_of(net, [(x, y)], recipe)
    (there,), _ = remote_worker(net)(pickle.loads(pickle.dumps([sent_task(tasks[0], sent_recipe(recipe))])))
    assert received(there).metrics == train(net, [(x, y)], recipe, strategy="serial")[0].metrics


def test_bfloat16_travels_to_other_processes():
    state = {
        "w": torch.randn(3, 4).to(torch.bfloat16),
        "n": torch.tensor(3),
        "b": torch.tensor(1.5).bfloat16(),
    }
    there = pickle.loads(pickle.dumps(_arrays(state)))
    back = _tensors(there)
    assert back is not None
    assert all(torch.equal(back[n], state[n]) and back[n].dtype == state[n].dtype for n in state)


def test_groups_in_another_process_share_an_engine_for_a_loss_that_cannot_be_imported():
    """A lambda would arrive as another one with every group, and each would need an engine of its own."""
    recipe = Recipe(
        optimizer=SGD(0.1), batch_size=4, loss=lambda o, y: F.cross_entropy(o, y, reduction="none")
    )
    slower = dataclasses.replace(recipe, optimizer=SGD(0.05))
    net = with_keyed_dropout(model())
    data = [pair(8, seed=i) for i in range(4)]
    recipes = [recipe, recipe, slower, slower]
    tasks = tasks_of(net, data, recipes)
    worker = remote_worker(net, Strategy(inner="fused", chunk=2), find_traits(net, tasks[0]))
    groups = [[sent_task(task, sent_recipe(task.recipe)) for task in part] for part in (tasks[:2], tasks[2:])]
    found = [received(r) for group in groups for r in worker(cloudpickle.loads(cloudpickle.dumps(group)))[0]]
    truth = train(net, data, recipes, strategy="serial")
    assert [r.client for r in found] == [0, 1, 2, 3]
    assert max(difference(a.state, b.state) for a, b in zip(found, truth, strict=True)) <= 1e-6
    assert len(worker._worker._engines) == 1
