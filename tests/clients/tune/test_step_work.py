"""Counting a step: operations, products and numbers written, with nothing left behind."""

import copy

import torch
from clients.linear_clients import tasks_of as loaded_tasks
from torch import nn

from evenload.clients import SGD, Recipe
from evenload.clients.step.dropout import with_keyed_dropout
from evenload.clients.tune.step_work import bytes_per_client, count_work, most_clients


def test_products_are_counted_and_the_model_stays_as_it_is(tasks_of):
    model, tasks = tasks_of(2)
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    found = count_work(model, tasks[0])
    # forward [4, 3] @ [3, 2], and of its gradients that of the weight only: inputs need none
    assert found.flops == 2 * (2 * 4 * 3 * 2)
    assert 5 < found.n_ops < 60
    assert found.elements > sum(p.numel() for p in model.parameters())
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(random, torch.get_rng_state())


def test_memory_is_counted_per_client_and_limits_the_chunk():
    model = with_keyed_dropout(nn.Sequential(nn.Linear(3, 50), nn.ReLU(), nn.Linear(50, 2)))
    recipe = Recipe(optimizer=SGD(0.1, momentum=0.9), batch_size=4, steps=10)
    (task,) = loaded_tasks(model, [(torch.zeros(8, 3), torch.zeros(8, dtype=torch.int64))], recipe)
    need = bytes_per_client(model, task)
    params = sum(p.numel() * 4 for p in model.parameters())
    assert 3 * params < need < 3 * params + 10_000
    assert most_clients(model, task, free_bytes=need * 40) == 10
    assert most_clients(model, task, free_bytes=0) == 1
