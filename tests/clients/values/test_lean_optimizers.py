"""torch's optimisers without its compiler: the very numbers, and hooks as ever."""

import subprocess
import sys
import textwrap

import pytest
import torch

from evenload.clients.values.lean_optimizers import lean

OPTIONS = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "Adam": {"lr": 0.1, "amsgrad": True},
    "AdamW": {"lr": 0.1, "weight_decay": 0.1},
    "RMSprop": {"lr": 0.1, "momentum": 0.5, "centered": True},
    "Adagrad": {"lr": 0.1},
    "Adadelta": {"lr": 0.1},
    "Adamax": {"lr": 0.1},
    "NAdam": {"lr": 0.1},
    "RAdam": {"lr": 0.1},
    "Rprop": {"lr": 0.1},
    "ASGD": {"lr": 0.1},
}


def steps(kind, options, n=8):
    generator = torch.Generator().manual_seed(3)
    params = [torch.randn(shape, generator=generator).requires_grad_() for shape in ((3, 2), (4,))]
    optimizer = kind(params, **options)
    for _ in range(n):
        optimizer.zero_grad()
        sum((p * torch.randn(p.shape, generator=generator)).pow(2).sum() for p in params).backward()
        optimizer.step()
    return [p.detach() for p in params]


@pytest.mark.parametrize("name", OPTIONS)
def test_it_steps_bit_by_bit_as_torch_does(name):
    kind = getattr(torch.optim, name)
    assert lean(kind) is not kind
    for own, theirs in zip(steps(lean(kind), OPTIONS[name]), steps(kind, OPTIONS[name]), strict=True):
        assert torch.equal(own, theirs)


def test_a_class_with_methods_of_its_own_stays_as_it_is():
    class Own(torch.optim.SGD):
        def zero_grad(self, set_to_none=True):
            super().zero_grad(set_to_none)

    assert lean(Own) is Own
    assert lean(torch.optim.LBFGS) is not torch.optim.SGD


def test_hooks_and_the_profiler_see_every_step():
    p, seen = torch.zeros(2, requires_grad=True), []
    optimizer = lean(torch.optim.SGD)([p], lr=0.5)
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    p.grad = torch.ones(2)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        optimizer.step()
    assert seen == ["before", "after"]
    assert p.tolist() == [-0.5, -0.5]
    assert "Optimizer.step#SGD.step" in [event.key for event in profile.key_averages()]


def test_training_loads_no_compiler():
    """Loading it takes a second, more than many small clients take altogether."""
    program = """
        import sys, torch
        from evenload.clients import SGD, Adam, NAdam, ParameterGroups, Recipe, train

        g = torch.Generator().manual_seed(0)
        sizes = 9, 5, 8, 1
        data = [(torch.randn(n, 6, generator=g), torch.randint(0, 3, (n,), generator=g)) for n in sizes]
        net = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3))
        groups = ParameterGroups(SGD(0.1), {"*bias": {"lr": 0.2}})
        for optimizer in (SGD(0.1, momentum=0.9), Adam(), NAdam(), groups):
            recipe = Recipe(optimizer=optimizer, batch_size=4, epochs=2, metrics=("accuracy",))
            for strategy in ("serial", "fused:3", "auto"):
                ran = train(net, data, recipe, strategy=strategy).plan.strategy
                assert strategy == "auto" or ran.is_fused == (strategy != "serial"), ran
        print(sorted({"torch._dynamo", "sympy"} & sys.modules.keys()))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=600
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
