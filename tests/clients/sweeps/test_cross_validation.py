"""Cross-validation with scikit-learn's splitters and scorers: each fold is what training it alone gives."""

import numpy as np
import pytest
import torch
from torch import nn

from evenload.clients import SGD, Recipe, cross_validate, train
from evenload.clients.spread.equivalence_check import difference
from evenload.errors import ConfigError

pytest.importorskip("sklearn")
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score
from sklearn.model_selection import GroupKFold, LeaveOneOut, cross_val_score

G = torch.Generator().manual_seed(0)
X = torch.randn(30, 4, generator=G)
WEIGHT = torch.randn(4, 3, generator=G)
Y = (X @ WEIGHT).argmax(1)
RECIPE = Recipe(optimizer=SGD(0.5), batch_size=8, epochs=3)


def net(n_out=3):
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, n_out))


def test_folds_are_trained_together_as_each_alone_and_scored_by_scikit_learn():
    names = ["accuracy", "neg_log_loss", "roc_auc_ovr"]
    found = cross_validate(net, X, Y, 3, recipe=RECIPE, scoring=names, strategy="fused:3", seed=2)
    assert found.plan is not None
    assert found.plan.strategy.inner == "fused"
    assert sorted(np.concatenate([b for _, b in found.folds]).tolist()) == list(range(30))
    for i, (a, b) in enumerate(found.folds):
        assert np.ptp(np.bincount(Y[b].numpy(), minlength=3)) >= 0
        alone = train(net, [(X[a], Y[a])], RECIPE, strategy="serial", ids=[i], seed=2)
        assert difference(alone[0].state, found.states[i]) <= 1e-6
        module = net()
        module.load_state_dict(alone[0].state)
        with torch.no_grad():
            p = module(X[b]).double().softmax(1).numpy()
        truth = Y[b].numpy()
        assert found.scores["accuracy"][i] == accuracy_score(truth, p.argmax(1))
        assert found.scores["neg_log_loss"][i] == pytest.approx(-log_loss(truth, p), abs=1e-5)
        expected = roc_auc_score(truth, p, multi_class="ovr")
        assert found.scores["roc_auc_ovr"][i] == pytest.approx(expected, abs=1e-5)
    assert found.mean("accuracy") == found.scores["accuracy"].mean()


def test_classes_are_in_each_fold_as_often_and_two_of_them_have_one_decision():
    two = Y.clamp(max=1)
    found = cross_validate(lambda: net(2), X, two, 5, recipe=RECIPE, scoring="roc_auc", strategy="fused:5")
    counts = [np.bincount(two[b].numpy()).tolist() for _, b in found.folds]
    assert all(abs(a - b) <= 1 for one in counts for a, b in zip(one, counts[0], strict=True))
    assert found.estimators[0].decision_function(X[:4]).shape == (4,)
    assert found.scores["score"].shape == (5,)


def test_splitters_and_scorers_are_scikit_learns():
    groups = np.arange(30) // 5
    found = cross_validate(
        net, X.numpy(), Y.numpy(), GroupKFold(3), groups=groups, recipe=RECIPE, strategy="fused:3",
        scoring=lambda estimator, x, y: float(len(y)),
    )  # fmt: skip
    assert found.scores["score"].tolist() == [10.0, 10.0, 10.0]
    assert all(not set(groups[a]) & set(groups[b]) for a, b in found.folds)
    given = [(range(20), range(20, 30))]
    assert len(cross_validate(net, X, Y, given, recipe=RECIPE, strategy="serial").states) == 1
    assert len(cross_validate(net, X[:6], Y[:6], LeaveOneOut(), recipe=RECIPE, strategy="fused:6").folds) == 6


def test_numbers_are_scored_by_r2():
    recipe = Recipe(optimizer=SGD(0.05), loss="mse", batch_size=8, epochs=20)
    found = cross_validate(
        lambda: nn.Linear(4, 1), X, X @ WEIGHT[:, :1], 3, recipe=recipe, strategy="fused:3"
    )
    assert found.mean() > 0.9


def test_an_estimator_is_scikit_learns_own():
    found = cross_validate(LogisticRegression(), X.numpy(), Y.numpy(), 3)
    assert (
        found.scores["score"].tolist()
        == cross_val_score(LogisticRegression(), X.numpy(), Y.numpy(), cv=3).tolist()
    )
    assert found.estimators[0].predict(X.numpy()[:2]).shape == (2,)


def test_what_cannot_be_scored_or_split_is_refused():
    with pytest.raises(ConfigError, match="29 targets"):
        cross_validate(net, X, Y[:29], 3)
    with pytest.raises(ConfigError, match="scoring"):
        cross_validate(net, X, Y, 3, recipe=RECIPE, scoring="beauty", strategy="serial")
