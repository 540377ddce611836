"""Ensembles: members from starts of their own, asked in one fused pass."""

import pytest
import torch
from clients import zoo
from torch import nn

from evenload.clients import SGD, Recipe, ensemble
from evenload.clients.spread.equivalence_check import difference
from evenload.errors import ConfigError

X = torch.randn(25, 4, generator=torch.Generator().manual_seed(0))
Y = X[:, 0].gt(0).long()
RECIPE = Recipe(optimizer=SGD(0.3), batch_size=9, epochs=3)


def net():
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.2), nn.Linear(5, 2))


class Branching(nn.Linear):
    def forward(self, x):
        return super().forward(x) * (
            2 if self.training or (x.sum() > -1e9 and self.weight.sum() > -1e9) else 1
        )


def test_members_differ_are_the_serial_ones_and_are_asked_together():
    fused, serial = (
        ensemble(net, (X, Y), 4, recipe=RECIPE, strategy=s, seed=1) for s in ("fused:4", "serial")
    )
    assert max(difference(a, b) for a, b in zip(fused.states, serial.states, strict=True)) <= 1e-6
    assert difference(fused.states[0], fused.states[1]) > 1e-2
    outputs = fused.outputs(X)
    assert fused.why_one_by_one is None
    for member, state in enumerate(fused.states):
        module = net().eval()
        module.load_state_dict(state)
        with torch.no_grad():
            assert torch.allclose(module(X), outputs[member], atol=1e-6)
    assert torch.allclose(fused.predict(X), outputs.mean(0))
    assert torch.allclose(fused.predict_proba(X).sum(1), torch.ones(25))
    assert fused.std(X).shape == (25, 2)
    assert len(fused) == 4
    assert float((fused.predict_proba(X.numpy()).argmax(1) == Y).float().mean()) > 0.7


def test_a_model_that_vmap_cannot_do_is_asked_one_by_one():
    found = ensemble(lambda: Branching(4, 2), (X, Y), 2, recipe=RECIPE, strategy="serial")
    assert found.outputs(X).shape == (2, 25, 2)
    assert found.why_one_by_one is not None
    assert torch.allclose(
        found.outputs(X)[1], 2 * (X @ found.states[1]["weight"].T + found.states[1]["bias"]), atol=1e-5
    )


def test_bootstrap_gives_members_of_one_start_rows_of_their_own():
    made = nn.Linear(4, 2)
    found = ensemble(made, (X, Y), 3, recipe=RECIPE, bootstrap=True, strategy="fused:3")
    assert difference(found.states[0], found.states[1]) > 1e-3
    again = ensemble(made, (X, Y), 3, recipe=RECIPE, bootstrap=True, strategy="serial")
    assert max(difference(a, b) for a, b in zip(found.states, again.states, strict=True)) <= 1e-6


def test_what_would_be_no_ensemble_is_refused():
    with pytest.raises(ConfigError, match="n=0"):
        ensemble(net, (X, Y), 0)
    with pytest.raises(ConfigError, match=r"one nn\.Module"):
        ensemble(nn.Linear(4, 2), (X, Y), 2)
    with pytest.raises(ConfigError, match="no member"):
        ensemble(net, (X * float("nan"), Y), 2, recipe=RECIPE, strategy="serial")


def test_members_with_tied_weights_are_asked_in_one_pass_as_each_alone():
    x, y = zoo.tensors(12)
    members = ensemble(zoo.tied, (x, y), 3, strategy="serial")
    for state, outputs in zip(members.states, members.outputs(x), strict=True):
        alone = zoo.tied()
        alone.load_state_dict(state)
        with torch.no_grad():
            assert torch.allclose(alone(x), outputs, atol=1e-6)
    assert members.why_one_by_one is None


def test_rows_that_no_model_takes_change_nothing_and_no_rows_have_no_outputs():
    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
    members = ensemble(lambda: nn.Linear(4, 3), (x, x[:, :3].argmax(1)), 2, strategy="serial")
    with pytest.raises(RuntimeError):
        members.predict(x[:, :2])
    assert members.why_one_by_one is None
    assert members.predict(x[:0]).shape == (0, 3)
    with pytest.raises(ConfigError, match="no tensor"):
        members.predict(None)
    one = ensemble(lambda: nn.Linear(4, 1), (x, x[:, :1]), 2, recipe=Recipe(loss="mse"), strategy="serial")
    with pytest.raises(ConfigError, match="no logits of classes"):
        one.predict_proba(x)


@pytest.mark.parametrize("n", [0, -1, True, 1.5, "3", None])
def test_members_are_counted_by_an_int(n):
    with pytest.raises(ConfigError, match="n="):
        ensemble(lambda: nn.Linear(4, 3), (torch.zeros(2, 4), torch.zeros(2)), n)
