"""Whoever writes into one client's result changes no other result, no later round and no start."""

import io
import pickle

import pytest
import torch
from torch import nn

from evenload.clients import SGD, LoRA, Recipe, Trainer, adapters

SIZES = (5, 0, 3, 8, 1)


class PartlyFrozen(nn.Module):
    """A frozen layer and a buffer, which all clients of a fused step share, before one that is trained."""

    def __init__(self):
        super().__init__()
        self.base, self.head = nn.Linear(6, 40).requires_grad_(False), nn.Linear(40, 3)
        self.register_buffer("gain", torch.ones(40))

    def forward(self, x):
        return self.head(torch.tanh(self.base(x)) * self.gain)


def copied(states):
    return [{name: t.clone() for name, t in state.items()} for state in states]


def is_same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture
def job():
    torch.manual_seed(0)
    model, g = PartlyFrozen(), torch.Generator().manual_seed(0)
    data = [(torch.randn(n, 6, generator=g), torch.randint(0, 3, (n,), generator=g)) for n in SIZES]
    return model, data, Recipe(optimizer=SGD(0.1), batch_size=4, epochs=1)


@pytest.mark.parametrize("strategy", ["serial", "fused:5", "fused:2", "threads*2/fused:2", "auto", "merged"])
def test_no_tensor_that_a_trainer_hands_out_shares_memory_with_its_own_or_another(strategy, job):
    """``start`` twice, states, and what is reduced: whoever writes into one changes that one alone."""
    model, data, recipe = job
    data = data if strategy != "merged" else [pair for pair in data if len(pair[0])]
    with Trainer(model, strategy=strategy) as trainer:
        # The model's own tensors are the start: what a server does that keeps its state in a model.
        handed = [trainer.start, trainer.start]
        handed += trainer.train(data, recipe, start=model.state_dict()).states
        handed += [trainer.train(data, recipe, reduce="mean").reduced for _ in range(2)]
        handed += [model.state_dict(), trainer.model.state_dict()]
        before = copied(handed)
        again = trainer.train(data, recipe).states
        for at, state in enumerate(handed[:-2]):
            for t in state.values():
                t.fill_(float(at) + 100)
            after = handed[at + 1 :]
            assert all(map(is_same, after, before[at + 1 :]))
            assert all(bool((t == at + 100).all()) for t in state.values())
        assert all(map(is_same, trainer.train(data, recipe).states, again))


def test_what_is_saved_of_a_state_is_one_state(job):
    model, data, recipe = job
    with Trainer(model, strategy="fused:5") as trainer:
        state = trainer.train(data, recipe).states[0]
    n_bytes = sum(t.numel() * t.element_size() for t in state.values())
    assert len(pickle.dumps(state)) < n_bytes + 10_000
    assert is_same(pickle.loads(pickle.dumps(state)), dict(state))
    file = io.BytesIO()
    torch.save(state, file)
    assert file.tell() < n_bytes + 10_000


def test_writing_into_an_adapter_changes_that_adapter_alone(job):
    _, data, recipe = job
    base = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    started = copied([base.state_dict()])[0]
    data = [data[3], data[2], data[3]]  # batch statistics need two rows
    found = adapters(base, data, LoRA(rank=2), recipe=recipe, strategy="fused:3")
    before = copied(adapter.weights for adapter in found)
    for t in (*found[0].weights.values(), *found[0].merged().state_dict().values()):
        t.zero_()
    with torch.no_grad():
        for t in found[0].model().state_dict().values():
            t.zero_()
    assert all(is_same(found[k].weights, before[k]) for k in (1, 2))
    assert is_same(base.state_dict(), started)
