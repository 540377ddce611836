"""Bytes of a client in a fused step limit the chunk."""

import torch
from torch import nn

from evenload.clients import SGD, Recipe
from evenload.clients.load.load import ClientInputs, DatasetReader, load_tasks
from evenload.clients.step.dropout import with_keyed_dropout
from evenload.clients.tune.step_work import bytes_per_client, most_clients


def test_memory_is_counted_per_client_and_limits_the_chunk():
    model = with_keyed_dropout(nn.Sequential(nn.Linear(3, 50), nn.ReLU(), nn.Linear(50, 2)))
    recipe = Recipe(optimizer=SGD(0.1, momentum=0.9), batch_size=4, steps=10)
    clients = [(torch.zeros(8, 3), torch.zeros(8, dtype=torch.int64))]
    inputs = ClientInputs(clients, [recipe], [0], [model.state_dict()], [None], [None])
    task = load_tasks(DatasetReader(model), inputs, 0, 0).tasks[0]
    need = bytes_per_client(model, task)
    params = sum(p.numel() * 4 for p in model.parameters())
    assert 2 * 3 * params < need < 2 * 3 * params + 20_000
    assert most_clients(model, task, free_bytes=need * 20) == 10
    assert most_clients(model, task, free_bytes=0) == 1
