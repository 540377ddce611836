"""Optimisers, parameter groups and schedules: the stacked rule against torch's own, step by step."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import nn

from evenload.clients import (
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Cosine,
    NAdam,
    OwnOptimizer,
    ParameterGroups,
    RAdam,
    Recipe,
    RMSprop,
    Rprop,
    TorchOptimizer,
    TorchSchedule,
    train,
)
from evenload.clients.spread.equivalence_check import difference
from evenload.errors import ConfigError

RATES = st.floats(1e-3, 0.3)
SHARES = st.floats(0.0, 0.95)
DECAYS = st.sampled_from([0.0, 0.0, 0.01, 0.3])
EPS = st.sampled_from([1e-3, 1e-6])
BETAS = st.tuples(SHARES, SHARES)
FLAGS = {"nesterov": False, "centered": False, "amsgrad": False, "decoupled_weight_decay": False}


def flag(kind):
    names = [f.name for f in dataclasses.fields(kind) if f.name in FLAGS and f.name != "nesterov"]
    return st.fixed_dictionaries({name: st.booleans() for name in names})


OPTIMIZERS = {
    SGD: st.builds(SGD, RATES, momentum=SHARES, dampening=SHARES, weight_decay=DECAYS),
    Adam: st.builds(Adam, RATES, BETAS, EPS, DECAYS),
    AdamW: st.builds(AdamW, RATES, BETAS, EPS, DECAYS),
    RMSprop: st.builds(RMSprop, RATES, DECAYS, st.floats(0.5, 0.99), st.just(1e-3), SHARES),
    Adagrad: st.builds(Adagrad, RATES, DECAYS, st.floats(0, 0.2), st.floats(0, 1), EPS),
    Adadelta: st.builds(Adadelta, st.just(1.0), DECAYS, SHARES, EPS),
    Adamax: st.builds(Adamax, RATES, DECAYS, BETAS, EPS),
    NAdam: st.builds(NAdam, RATES, DECAYS, BETAS, EPS, st.floats(0, 0.1)),
    RAdam: st.builds(RAdam, RATES, DECAYS, BETAS, EPS),
    Rprop: st.builds(Rprop, RATES, st.just(0.0), st.just((0.4, 1.3)), st.just((1e-3, 0.5))),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
@settings(max_examples=8, deadline=None, phases=[Phase.generate])
@given(source=st.data())
def test_the_stacked_rule_is_torchs(kind, source):
    """Three clients with numbers of their own, in steps of their own, beside torch's optimiser of each."""
    flags = source.draw(flag(kind))
    draws = st.lists(OPTIMIZERS[kind], min_size=3, max_size=3)
    opts = [dataclasses.replace(o, **flags) for o in source.draw(draws)]
    steps = 7
    g = torch.Generator().manual_seed(source.draw(st.integers(0, 99)))
    start = torch.randn(3, 2, 2, generator=g, dtype=torch.float64)
    grads = torch.randn(steps, 3, 2, 2, generator=g, dtype=torch.float64)
    own = [nn.Parameter(p.clone()) for p in start]
    torchs = [o.build({"p": p}) for o, p in zip(opts, own, strict=True)]
    form = kind.form(opts)
    params, state = {"p": start.clone()}, {n: {"p": torch.zeros_like(start)} for n in kind.state_names(form)}
    for step in range(steps):
        factor = 1 / (1 + step)
        for optimizer, o, p, grad in zip(torchs, opts, own, grads[step], strict=True):
            optimizer.param_groups[0]["lr"] = o.lr * factor
            p.grad = grad.clone()
            optimizer.step()
        t = np.full((1, 3), step + 1)
        numbers = kind.scalars(form, opts, np.full((1, 3), factor), t)
        wide = {n: torch.from_numpy(np.broadcast_to(v, (1, 3))[0].copy()) for n, v in numbers.items()}
        opts[0].update(form, params, {"p": grads[step]}, state, wide)
        far = (params["p"] - torch.stack([p.detach() for p in own])).abs().max()
        assert float(far) <= 1e-8 * max(1.0, float(params["p"].abs().max()))


def test_a_step_of_some_clients_takes_the_numbers_that_the_code_of_all_asks_for():
    """Clients without momentum or decay may be alone in a step. Oracle: torch.optim, one client."""
    plain, rich = SGD(0.1), SGD(0.2, momentum=0.9, weight_decay=0.1)
    form, grads = SGD.form([plain, rich]), torch.arange(6.0).view(3, 1, 2)
    params, state = {"p": torch.ones(1, 2)}, {"momentum": {"p": torch.zeros(1, 2)}}
    own = nn.Parameter(torch.ones(1, 2))
    torchs = plain.build({"p": own})
    for step, grad in enumerate(grads, 1):
        own.grad = grad.clone()
        torchs.step()
        numbers = SGD.scalars(form, [plain], np.ones(1), np.full((1, 1), step))
        wide = {n: torch.from_numpy(np.broadcast_to(v, (1, 1))[0].copy()).float() for n, v in numbers.items()}
        SGD.update(form, params, {"p": grad}, state, wide)
    assert torch.allclose(params["p"], own.detach())


def lion(p, g, state, lr, t):
    turn = torch.sign(0.9 * state["mean"] + 0.1 * g)
    return p - lr * (turn + 0.01 * p), {"mean": 0.99 * state["mean"] + 0.01 * g}


def averaged(p, g, state, lr, t):
    mean = state["mean"] + (p - lr * g - state["mean"]) / (t + 1)
    return p - lr * g + 0.1 * (mean - p), {"mean": mean}


class OneCycle:
    def __call__(self, optimizer, steps):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=steps, cycle_momentum=False)


GROUPS = {"*.bias": {"weight_decay": 0.0}, "2.*": {"lr": 0.01}}
RECIPES = {
    "a rule of one's own": {
        "optimizer": OwnOptimizer(lambda p: {"mean": torch.zeros_like(p)}, lion, lr=0.01)
    },
    "a state that begins with the parameter": {
        "optimizer": OwnOptimizer(lambda p: {"mean": p.clone()}, averaged, lr=0.1)
    },
    "groups": {"optimizer": ParameterGroups(SGD(0.1, momentum=0.9, weight_decay=0.1), GROUPS)},
    "groups of RMSprop": {"optimizer": ParameterGroups(RMSprop(0.01, 0.1), GROUPS), "schedule": Cosine()},
    "torch's schedule": {"optimizer": SGD(0.1), "schedule": TorchSchedule(OneCycle())},
    "a function for a schedule": {"optimizer": NAdam(0.01), "schedule": lambda step, steps: 1 - step / steps},
}


def net():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def clients(sizes=(6, 13, 9)):
    g = torch.Generator().manual_seed(0)
    return [
        (torch.randn(n, 4, generator=g, dtype=torch.float64), torch.randint(0, 3, (n,), generator=g))
        for n in sizes
    ]


def far_apart(recipes, strategy="fused:2"):
    runs = [train(net, clients(), recipes, strategy=s, seed=1) for s in ("serial", strategy)]
    assert runs[1].plan.strategy.inner == strategy.partition(":")[0], runs[1].plan.explain()
    return max(difference(a.state, b.state) for a, b in zip(*runs, strict=True))


@pytest.mark.parametrize("name", RECIPES)
def test_every_way_to_step_is_the_serial_one(name):
    assert far_apart(Recipe(batch_size=4, epochs=2, **RECIPES[name])) <= 1e-8


def test_rates_of_groups_may_differ_by_client():
    def recipe(c):
        groups = ParameterGroups(SGD(0.01 * (c + 1)), {"0.*": {"lr": 0.1 * c, "momentum": 0.2 * c}})
        return Recipe(optimizer=groups, batch_size=4, steps=3 + c)

    assert far_apart([recipe(c) for c in range(3)]) <= 1e-12


def test_an_optimizer_without_a_rule_is_trained_serially_and_named():
    recipe = Recipe(optimizer=TorchOptimizer("ASGD", lr=0.1, options={"lambd": 0.01}), batch_size=4)
    run = train(net, clients(), recipe, strategy="fused:2")
    assert "no fused rule for TorchOptimizer(ASGD)" in run.plan.why
    assert difference(run[0].state, run[1].state) > 0


def test_a_state_of_another_shape_is_refused_by_client():
    odd = OwnOptimizer(lambda p: {"mean": p.sum()}, lion)
    run = train(net, clients(), Recipe(optimizer=odd), strategy="fused:2", on_error="return")
    assert all("state 'mean' has shape ()" in str(r.error) for r in run)


def test_a_pattern_that_names_nothing_is_refused_by_client():
    recipe = Recipe(optimizer=ParameterGroups(SGD(), {"head.*": {"lr": 1.0}}))
    run = train(net, clients(), recipe, strategy="serial", on_error="return")
    assert "no parameter is named like 'head.*'" in str(run[0].error)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Recipe(optimizer="SGD"), r"optimizer='SGD'"),
        (lambda: Recipe(schedule=3), r"schedule=3"),
        (lambda: RMSprop(lr=-1.0), r"RMSprop\(lr=-1.0\)"),
        (lambda: NAdam(betas=(0.9, 1.0)), r"betas="),
        (lambda: Rprop(etas=(1.5, 1.2)), r"etas="),
        (lambda: OwnOptimizer(None, lion), r"OwnOptimizer\(init=None"),
        (lambda: TorchOptimizer("Nothing"), r"Nothing"),
        (lambda: TorchOptimizer("LBFGS"), r"LBFGS needs more"),
        (lambda: TorchOptimizer(3), r"3 is no class"),
        (lambda: ParameterGroups(SGD(), {"a": {"rate": 1.0}}), r"group 'a' sets 'rate'"),
        (lambda: ParameterGroups(SGD(), {"a": {"lr": -1.0}}), r"SGD\(lr=-1.0\)"),
        (lambda: ParameterGroups(RMSprop(), {"a": {"centered": True}}), r"groups differ"),
        (lambda: ParameterGroups(TorchOptimizer("ASGD"), {}), r"ParameterGroups of a TorchOptimizer"),
        (
            lambda: TorchSchedule(lambda o, n: torch.optim.lr_scheduler.ReduceLROnPlateau(o)).factor(0, 2),
            r"waits for a metric",
        ),
        (
            lambda: TorchSchedule(
                lambda o, n: torch.optim.lr_scheduler.OneCycleLR(o, 1.0, total_steps=n)
            ).factor(0, 9),
            r"changes momentum",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(make, said):
    with pytest.raises((ConfigError, KeyError), match=said):
        make()


def test_clients_of_two_optimizers_are_named():
    with pytest.raises(ConfigError, match=r"client 1 uses Adam, client 0 SGD"):
        train(net, clients(), [Recipe(optimizer=o) for o in (SGD(), Adam(), SGD())])


@pytest.mark.parametrize("strategy", ["serial", "fused:2"])
@pytest.mark.parametrize(
    "step",
    [
        lambda p, g, state, lr, t: p - lr * g,
        lambda p, g, state, lr, t: None,
        lambda p, g, state, lr, t: ((p - lr * g).sum(), state),
        lambda p, g, state, lr, t: (p - lr * g, None),
        lambda p, g, state, lr, t: (0.5, state),
    ],
)
def test_a_step_of_ones_own_that_returns_no_parameter_fails_by_name(step, strategy):
    recipe = Recipe(optimizer=OwnOptimizer(lambda p: {}, step, lr=0.1), batch_size=2)
    data = [(torch.ones(2, 3), torch.tensor([0, 1]))] * 2
    run = train(nn.Linear(3, 2), data, recipe, strategy=strategy, on_error="return")
    assert [r.status for r in run] == ["failed", "failed"]
    assert all("the optimizer's step returned" in str(r.error) for r in run)


@pytest.mark.parametrize(
    "make",
    [
        lambda: OwnOptimizer(lambda p: {}, lambda *a: a, lr="a"),
        lambda: TorchOptimizer("ASGD", lr=-1.0),
        lambda: TorchOptimizer("ASGD", options=3),
        lambda: TorchOptimizer("Optimizer"),
        lambda: ParameterGroups(SGD(), 3),
        lambda: ParameterGroups(SGD(), None),
        lambda: ParameterGroups(SGD(), {"0.*": 3}),
        lambda: ParameterGroups(SGD(), {0: {"lr": 0.1}}),
        lambda: Recipe(objective=3),
        lambda: Recipe(loss=3),
        lambda: Recipe(augment=3),
        lambda: Recipe(epochs=True),
        lambda: TorchSchedule(lambda optimizer, steps: None).factor(0, 2),
        lambda: OwnOptimizer.form([OwnOptimizer(lambda p: None, lambda *a: a)]),
        lambda: OwnOptimizer.form([OwnOptimizer(lambda p: {"m": 0.0}, lambda *a: a)]),
        lambda: OwnOptimizer.form([OwnOptimizer(lambda p: p.missing, lambda *a: a)]),
    ],
)
def test_what_cannot_be_a_rule_is_refused_where_it_is_made(make):
    with pytest.raises(ConfigError):
        make()
