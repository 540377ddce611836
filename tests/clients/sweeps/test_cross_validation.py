"""Cross-validation with scikit-learn's splitters and scorers: each fold is what training it alone gives."""

import functools
import importlib.util

import numpy as np
import pytest
import torch
from torch import nn

from evenload.clients import SGD, Recipe, cross_validate, train
from evenload.clients.spread.equivalence_check import difference
from evenload.errors import ConfigError

# Imported where it is used: two seconds, in each process of the runner that reads this file.
pytestmark = pytest.mark.skipif(importlib.util.find_spec("sklearn") is None, reason="needs scikit-learn")

G = torch.Generator().manual_seed(0)
X = torch.randn(30, 4, generator=G)
WEIGHT = torch.randn(4, 3, generator=G)
Y = (X @ WEIGHT).argmax(1)
RECIPE = Recipe(optimizer=SGD(0.5), batch_size=8, epochs=3)


def net(n_out=3):
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, n_out))


def test_folds_are_trained_together_as_each_alone_and_scored_by_scikit_learn():
    from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

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
    from sklearn.model_selection import GroupKFold, LeaveOneOut

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


def test_folds_of_an_estimator_are_scikit_learns_whatever_the_targets():
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_validate as theirs
    from sklearn.tree import DecisionTreeRegressor

    rng = np.random.default_rng(0)
    labels = np.sort(rng.integers(0, 3, 30))
    tree = DecisionTreeRegressor(random_state=0)
    pairs = [(LogisticRegression(), t) for t in (labels, labels * 1.0, np.array(["a", "b", "c"])[labels])]
    for estimator, targets in [*pairs, (tree, labels), (tree, labels + 0.5)]:
        found = cross_validate(estimator, X.numpy(), targets, 3, return_train_score=True)
        expected = theirs(estimator, X.numpy(), targets, cv=3, return_train_score=True)
        assert found.scores["score"].tolist() == expected["test_score"].tolist()
        assert np.allclose(found.train_scores["score"], expected["train_score"])
        assert found.estimators[0].predict(X.numpy()[:2]).shape == (2,)


def test_yes_and_no_by_one_logit_are_classes_and_shares_are_numbers():
    recipe = Recipe(optimizer=SGD(0.5), loss="bce_with_logits", batch_size=8, epochs=5)
    one = functools.partial(nn.Linear, 4, 1)
    truth = (X @ WEIGHT[:, :1] > 0).float()
    names = ["accuracy", "roc_auc", "neg_log_loss"]
    found = cross_validate(one, X, truth, 3, recipe=recipe, scoring=names, strategy="serial")
    own = cross_validate(one, X, truth, 3, recipe=recipe, strategy="serial")
    assert np.array_equal(own.scores["score"], found.scores["accuracy"])
    for estimator, state, (_, b) in zip(found.estimators, found.states, found.folds, strict=True):
        p = (X[b] @ state["weight"].T + state["bias"]).sigmoid()
        assert np.allclose(estimator.predict_proba(X[b])[:, 1:], p, atol=1e-6)
        assert estimator.score(X[b], truth[b]) == ((p > 0.5) == truth[b].bool()).double().mean()
    shares = cross_validate(one, X, truth * 0.5 + 0.2, 3, recipe=recipe, strategy="serial")
    assert ((shares.estimators[0].predict(X) > 0) & (shares.estimators[0].predict(X) < 1)).all()
    labels = torch.cat([truth, 1 - truth], 1)
    several = cross_validate(lambda: nn.Linear(4, 2), X, labels, 3, recipe=recipe, strategy="serial")
    assert several.estimators[0].predict(X).shape == (30, 2)
    assert 0 <= several.mean() <= 1


def test_masks_are_rows_and_a_fold_without_a_score_is_nan_with_a_warning():
    a = np.arange(30) < 20
    masked = cross_validate(net, X, Y, [(a, ~a)], recipe=RECIPE, strategy="serial")
    given = cross_validate(net, X, Y, [(range(20), range(20, 30))], recipe=RECIPE, strategy="serial")
    assert masked.folds[0][0].tolist() == list(range(20))
    assert difference(masked.states[0], given.states[0]) == 0

    def scorer(estimator, x, y):
        if torch.equal(x, X[20:]):
            raise ZeroDivisionError("no")
        return 1.0

    with pytest.warns(UserWarning, match="ZeroDivisionError: no"):
        found = cross_validate(
            net, X, Y, [(a, ~a), (~a, a)], recipe=RECIPE, scoring=scorer, strategy="serial"
        )
    assert np.isnan(found.scores["score"][0])
    assert found.scores["score"][1] == 1.0
    broken = X.clone()
    broken[0] = float("nan")
    with pytest.warns(UserWarning, match="ended as 'diverged'"):
        found = cross_validate(net, broken, Y, [(a, ~a), (~a, a)], recipe=RECIPE, strategy="serial")
    assert np.isnan(found.scores["score"]).tolist() == [True, False]


@pytest.mark.parametrize(
    "options",
    [
        {"cv": 1}, {"cv": 31}, {"cv": "many"}, {"cv": []}, {"cv": [([0, 30], [1])]}, {"cv": [([], [1])]},
        {"cv": [([0], [])]}, {"cv": [([0.5], [1])]}, {"cv": [([0],)]}, {"cv": "groups"},
        {"scoring": []}, {"scoring": 3}, {"scoring": ["accuracy", "beauty"]},
        {"y": Y[:29]}, {"X": {"x": X}}, {"y": np.array(["a", "b", "c"])[Y]}, {"y": 3},
    ],
)  # fmt: skip
def test_what_gives_no_fold_or_score_is_refused_before_anything_is_trained(options, monkeypatch):
    from sklearn.model_selection import GroupKFold

    monkeypatch.setattr("evenload.clients.sweeps.cross_validation.train", None)
    if options.get("cv") == "groups":
        options = {"cv": GroupKFold(2)}
    with pytest.raises(ConfigError):
        cross_validate(net, **{"X": X, "y": Y, "cv": 3} | options)


def test_weights_of_rows_are_those_of_a_plain_loop_and_of_scikit_learns_scorers():
    """Oracle: a loop of torch over each fold's rows in order, and scikit-learn's metrics of its outputs."""
    from sklearn.metrics import accuracy_score

    weights = np.linspace(0.0, 2.0, 30)
    recipe = Recipe(optimizer=SGD(0.5), batch_size=8, epochs=2, shuffle=False)
    given = {"sample_weight": weights, "return_train_score": True}
    found = cross_validate(
        net, X, Y, 3, recipe=recipe, strategy="fused:3", scoring="accuracy", seed=2, **given
    )
    default = cross_validate(net, X, Y, 3, recipe=recipe, strategy="fused:3", seed=2, **given)
    for i, (a, b) in enumerate(found.folds):
        torch.manual_seed(2)
        module, w = net(), torch.from_numpy(weights).float()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
        for at in [rows for _ in range(2) for rows in torch.from_numpy(a).split(8)]:
            optimizer.zero_grad()
            each = nn.functional.cross_entropy(module(X[at]), Y[at], reduction="none")
            (each * w[at]).mean().backward()
            optimizer.step()
        assert difference(module.state_dict(), found.states[i]) <= 1e-5
        for rows, scores in ((a, found.train_scores), (b, found.scores)):
            expected = accuracy_score(Y[rows], module(X[rows]).argmax(1), sample_weight=weights[rows])
            assert scores["score"][i] == pytest.approx(expected, abs=1e-12)
        assert default.scores["score"][i] == pytest.approx(found.scores["score"][i], abs=1e-12)


@pytest.mark.parametrize("given", [np.ones(29), np.full(30, -1.0), ["heavy"] * 30])
def test_weights_that_are_none_are_refused(given):
    with pytest.raises(ConfigError, match="sample_weight"):
        cross_validate(net, X, Y, 3, recipe=RECIPE, sample_weight=given)
