"""Each algorithm against a plain loop over a plain model: steps by hand, aggregation as in the paper."""

import dataclasses

import pytest
import torch
from torch import nn

from evenload.clients import SGD, Cohort, Recipe, evaluate, evaluate_each, federate
from evenload.clients.algorithms import (
    Ditto,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedBuff,
    FedDyn,
    FedNova,
    FedPer,
    FedProx,
    FedYogi,
    Krum,
    Median,
    PrivateFedAvg,
    Scaffold,
    TrimmedMean,
)
from evenload.errors import ConfigError, FormatError

LR, STEPS, ROUNDS = 0.1, 3, 3
SIZES = (4, 9, 6, 12, 7)
RECIPE = Recipe(optimizer=SGD(LR), loss="mse", batch_size=64, steps=STEPS)


def clients():
    g = torch.Generator().manual_seed(0)
    make = lambda *shape: torch.randn(shape, generator=g, dtype=torch.float64)  # noqa: E731
    return [(make(n, 3), make(n, 2)) for n in SIZES]


def model():
    torch.manual_seed(1)
    return nn.Linear(3, 2).double()


def start():
    return {k: v.clone() for k, v in model().state_dict().items()}


def gradient(w, x, y):
    error = x @ w["weight"].T + w["bias"] - y
    return {
        "weight": error.T @ x / len(x),
        "bias": error.mean(0),
    }  # of the mean over rows of the mean over outputs


def local(w, data, steps=STEPS, extra=None, lr=LR, momentum=0.0):
    w, v = {k: t.clone() for k, t in w.items()}, {k: torch.zeros_like(t) for k, t in w.items()}
    for _ in range(steps):
        g = gradient(w, *data)
        for k in w:
            v[k] = momentum * v[k] + g[k] + (extra(w)[k] if extra else 0)
            w[k] = w[k] - lr * v[k]
    return w


def mean(states, weights=None):
    weights = weights or [1.0] * len(states)
    return {k: sum(c * s[k] for c, s in zip(weights, states, strict=True)) / sum(weights) for k in states[0]}


def same(found, truth):
    return max(float((found[k] - truth[k]).abs().max()) for k in truth) <= 1e-12


def run(algorithm, recipe=RECIPE, rounds=ROUNDS, **kwargs):
    return federate(model, clients(), recipe, algorithm, rounds=rounds, strategy="fused:3", **kwargs)


def test_fedavg_weighs_by_rows():
    w = start()
    for _ in range(ROUNDS):
        w = mean([local(w, d) for d in clients()], SIZES)
    assert same(run(FedAvg()).state, w)


def test_fedprox_holds_clients_to_the_global_model():
    w = start()
    for _ in range(ROUNDS):
        own = [local(w, d, extra=lambda u, w=w: {k: 0.7 * (u[k] - w[k]) for k in u}) for d in clients()]
        w = mean(own, SIZES)
    assert same(run(FedProx(mu=0.7)).state, w)


def test_fedavgm_keeps_the_servers_momentum():
    w = start()
    v = {k: torch.zeros_like(t) for k, t in w.items()}
    for _ in range(ROUNDS):
        m = mean([local(w, d) for d in clients()], SIZES)
        v = {k: 0.8 * v[k] + m[k] - w[k] for k in w}
        w = {k: w[k] + 0.5 * v[k] for k in w}
    assert same(run(FedAvgM(lr=0.5, momentum=0.8)).state, w)


@pytest.mark.parametrize("kind", [FedAdam, FedYogi, FedAdagrad])
def test_adaptive_servers(kind):
    rule = kind(lr=0.05, beta1=0.6, beta2=0.9, tau=0.01)
    w = start()
    m = {k: torch.zeros_like(t) for k, t in w.items()}
    v = {k: torch.full_like(t, 1e-4) for k, t in w.items()}
    for _ in range(ROUNDS):
        avg = mean([local(w, d) for d in clients()], SIZES)
        for k in w:
            d = avg[k] - w[k]
            m[k] = 0.6 * m[k] + 0.4 * d
            if kind is FedAdam:
                v[k] = 0.9 * v[k] + 0.1 * d**2
            elif kind is FedYogi:
                v[k] = v[k] - 0.1 * d**2 * torch.sign(v[k] - d**2)
            else:
                v[k] = v[k] + d**2
        w = {k: w[k] + 0.05 * m[k] / (v[k].sqrt() + 0.01) for k in w}
    assert same(run(rule).state, w)


def test_scaffold_is_option_two_of_the_paper():
    data, w = clients(), start()
    c = {k: torch.zeros_like(t) for k, t in w.items()}
    own = [dict(c) for _ in data]
    for _ in range(ROUNDS):
        ends, fresh = [], []
        for i, d in enumerate(data):
            y = local(w, d, extra=lambda u, o=own[i], c=c: {k: c[k] - o[k] for k in u})
            fresh.append({k: own[i][k] - c[k] + (w[k] - y[k]) / (STEPS * LR) for k in w})
            ends.append(y)
        c = {k: c[k] + sum(f[k] - o[k] for f, o in zip(fresh, own, strict=True)) / len(data) for k in c}
        own, w = fresh, mean(ends)
    assert same(run(Scaffold()).state, w)
    with pytest.raises(ConfigError, match="plain SGD"):
        run(Scaffold(), dataclasses.replace(RECIPE, optimizer=SGD(LR, momentum=0.9)))


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_fednova_normalises_by_steps(rho):
    recipe = Recipe(optimizer=SGD(LR, momentum=rho), loss="mse", batch_size=64, epochs=2)
    w, weights = start(), [n / sum(SIZES) for n in SIZES]
    steps = [2] * len(SIZES)
    for _ in range(ROUNDS):
        lengths = [sum((1 - rho ** (t - j)) / (1 - rho) for j in range(t)) for t in steps]
        ends = [local(w, d, t, momentum=rho) for d, t in zip(clients(), steps, strict=True)]
        tau = sum(p * a for p, a in zip(weights, lengths, strict=True))
        w = {
            k: w[k] + tau * sum(p * (e[k] - w[k]) / a for p, e, a in zip(weights, ends, lengths, strict=True))
            for k in w
        }
    assert same(run(FedNova(momentum=rho), recipe).state, w)


def test_fednova_differs_from_fedavg_where_steps_differ():
    recipe = Recipe(optimizer=SGD(LR), loss="mse", batch_size=4, epochs=2)
    nova, avg = run(FedNova(), recipe).state, run(FedAvg(), recipe).state
    assert not same(nova, avg)
    assert [-(-n // 4) * 2 for n in SIZES] == [2, 6, 4, 6, 4]


def test_feddyn_remembers_each_clients_pull():
    data, w, alpha = clients(), start(), 0.3
    zero = {k: torch.zeros_like(t) for k, t in w.items()}
    own, h = [dict(zero) for _ in data], dict(zero)
    for _ in range(ROUNDS):
        ends = [
            local(w, d, extra=lambda u, o=own[i], w=w: {k: -o[k] + alpha * (u[k] - w[k]) for k in u})
            for i, d in enumerate(data)
        ]
        own = [{k: o[k] - alpha * (e[k] - w[k]) for k in w} for o, e in zip(own, ends, strict=True)]
        h = {k: h[k] - alpha / len(data) * sum(e[k] - w[k] for e in ends) for k in w}
        avg = mean(ends)
        w = {k: avg[k] - h[k] / alpha for k in w}
    assert same(run(FedDyn(alpha=alpha)).state, w)


def test_ditto_trains_a_personal_model_beside():
    data, w = clients(), start()
    own = [w for _ in data]
    for _ in range(ROUNDS):
        own = [
            local(v, d, extra=lambda u, w=w: {k: 0.4 * (u[k] - w[k]) for k in u})
            for v, d in zip(own, data, strict=True)
        ]
        w = mean([local(w, d) for d in data], SIZES)
    found = run(Ditto(lam=0.4))
    assert same(found.state, w)
    assert all(same(found.server.memory["personal"][i], v) for i, v in enumerate(own))


def test_robust_means_withstand_a_bad_client():
    data = clients()
    ends = [local(start(), d) for d in data]
    stacked = {k: torch.stack([e[k] for e in ends]) for k in ends[0]}
    assert same(run(Median(), rounds=1).state, {k: t.median(0).values for k, t in stacked.items()})
    trimmed = {k: t.sort(0).values[1:4].mean(0) for k, t in stacked.items()}
    assert same(run(TrimmedMean(share=0.2), rounds=1).state, trimmed)
    flat = torch.stack([torch.cat([e["weight"].flatten(), e["bias"]]) for e in ends])
    scores = [
        sum(sorted(((flat[i] - flat[j]) ** 2).sum().item() for j in range(5) if j != i)[:2]) for i in range(5)
    ]
    assert same(run(Krum(n_bad=1), rounds=1).state, ends[scores.index(min(scores))])
    bad = [*data[:4], (data[4][0], data[4][1] * 1e6)]
    for rule in (Median(), TrimmedMean(share=0.2), Krum(n_bad=1)):
        state = federate(model, bad, RECIPE, rule, rounds=2, strategy="fused:5").state
        assert max(float(t.abs().max()) for t in state.values()) < 10
    with pytest.raises(ConfigError, match="too few for Krum"):
        run(Krum(n_bad=3), rounds=1)


def test_privacy_clips_each_client_and_adds_the_noise_it_says():
    w, ends = start(), [local(start(), d) for d in clients()]
    total = {k: torch.zeros_like(t) for k, t in w.items()}
    for e in ends:
        norm = sum(((e[k] - w[k]) ** 2).sum() for k in w).sqrt()
        for k in w:
            total[k] += (e[k] - w[k]) * min(1.0, 0.05 / float(norm))
    clipped = {k: w[k] + total[k] / len(ends) for k in w}
    assert same(run(PrivateFedAvg(clip=0.05, noise=0.0), rounds=1).state, clipped)
    draws = [run(PrivateFedAvg(clip=0.05, noise=2.0), rounds=1, seed=s).state for s in range(16)]
    noise = torch.stack([torch.cat([(d[k] - clipped[k]).flatten() for k in w]) for d in draws])
    assert float(noise.std()) == pytest.approx(2.0 * 0.05 / len(ends), rel=0.15)
    with pytest.raises(ConfigError, match="buffers"):
        federate(lambda: nn.BatchNorm1d(3), clients(), RECIPE, PrivateFedAvg(), rounds=1)


def test_personal_layers_stay_with_their_clients():
    found = run(FedPer(personal=("bias",)))
    own = found.server.memory["personal"]
    assert sorted(own) == list(range(5))
    assert same(found.state | {"weight": start()["weight"]}, {"bias": start()["bias"]})
    assert len({tuple(state["bias"].tolist()) for state in own.values()}) == 5
    with pytest.raises(ConfigError, match="begins with"):
        run(FedPer(personal=("head",)))


def test_fedbuff_takes_whoever_comes_back_first():
    """Client 0 is a hundred times slower than the others and never comes back; stale changes count less."""
    rule = Cohort(speeds={0: 100.0, 1: 1.0, 2: 1.1, 3: 1.2, 4: 1.3})
    found = run(FedBuff(buffer=2, concurrency=5), cohort=rule, rounds=3)
    first, second = (local(start(), clients()[i]) for i in (1, 2))
    w1 = {k: start()[k] + ((first[k] - start()[k]) + (second[k] - start()[k])) / 2 for k in start()}
    assert found.history[0].cohort == (1, 2)
    assert same(run(FedBuff(buffer=2, concurrency=5), cohort=rule, rounds=1).state, w1)
    third, fourth = (local(start(), clients()[i]) for i in (3, 4))
    w2 = {k: w1[k] + sum(e[k] - start()[k] for e in (third, fourth)) * 2**-0.5 / 2 for k in w1}
    assert found.history[1].cohort == (3, 4)
    assert same(run(FedBuff(buffer=2, concurrency=5), cohort=rule, rounds=2).state, w2)
    assert all(0 not in r.cohort for r in found.history)


@pytest.mark.parametrize(
    "algorithm",
    [FedAvg(), FedAdam(), Scaffold(), FedDyn(), Ditto(), FedBuff(2, 4), PrivateFedAvg(noise_seed=3)],
    ids=lambda a: type(a).__name__,
)
def test_a_resumed_run_is_bit_for_bit_the_run_that_was_not_stopped(algorithm, tmp_path):
    path = tmp_path / "run" / "checkpoint.pt"
    recipe = dataclasses.replace(RECIPE, batch_size=4)
    whole = run(algorithm, recipe, rounds=4)
    run(algorithm, recipe, rounds=2, checkpoint=path)
    resumed = run(algorithm, recipe, rounds=4, checkpoint=path, resume=True)
    assert all(torch.equal(whole.state[k], resumed.state[k]) for k in whole.state)
    assert [(r.round, r.cohort, r.loss) for r in whole.history] == [
        (r.round, r.cohort, r.loss) for r in resumed.history
    ]
    with pytest.raises(FormatError, match="belongs to another run"):
        run(algorithm, RECIPE, rounds=4, checkpoint=path, resume=True)
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(FormatError, match="is not a checkpoint"):
        run(algorithm, recipe, rounds=4, checkpoint=path, resume=True)


def test_cohorts_dropouts_and_stragglers():
    rule = Cohort(size=0.6, drop_out=0.3)
    drawn = [tuple(rule.draw(5, 0, r)) for r in range(2000)]
    assert all(len(d) == 3 and len(set(d)) == 3 for d in drawn)
    counts = [sum(i in d for d in drawn) for i in range(5)]
    assert min(counts) > 1100
    assert max(counts) < 1300
    back = [sum(rule.returns([0, 1, 2], [1, 1, 1], 0, r)) for r in range(1000)]
    assert 2000 < sum(back) < 2200
    late = Cohort(deadline_s=5.0, speeds={2: 10.0})
    assert late.returns([1, 2, 3], [3, 3, 3], 0, 0) == [True, False, True]
    found = run(FedAvg(), cohort=late)
    assert all(r.returned == (0, 1, 3, 4) for r in found.history)
    nobody = run(FedAvg(), cohort=Cohort(deadline_s=0.5))
    assert same(nobody.state, start())


def test_a_round_without_a_usable_client_changes_nothing():
    poison = [(x * float("nan"), y) for x, y in clients()]
    found = federate(model, poison, RECIPE, FedAvg(), rounds=2, strategy="serial")
    assert same(found.state, start())
    assert all(r.returned == () for r in found.history)


def test_evaluation_is_the_mean_over_rows():
    x, y = clients()[0]
    found = run(FedAvg(), test=(x, y), evaluate_every=2)
    assert [sorted(r.test) for r in found.history] == [[], ["loss"], ["loss"]]
    expected = float(((x @ found.state["weight"].T + found.state["bias"] - y) ** 2).mean())
    assert found.history[-1].test["loss"] == pytest.approx(expected)
    each = evaluate_each(model(), [found.state], clients(), RECIPE)
    assert each[0] == evaluate(model(), found.state, (x, y), RECIPE)
    assert len(each) == 5
