"""Many steps in one call are those steps one by one; what cannot be recorded is not."""

import copy
import dataclasses
import random
import types

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from evenload.clients import SGD, Recipe
from evenload.clients.fused import compiled
from evenload.clients.fused.compiled import run_steps
from evenload.clients.fused.inductor import replay
from evenload.clients.fused.inductor import replay as made
from evenload.clients.fused.inductor.compiling import DirectCall
from evenload.clients.fused.inductor.recording import Product, record
from evenload.clients.fused.inductor.replay import ALIGNMENT, laid_out, make_replay, replayed_steps
from evenload.clients.step.fuse import StackedClients, StackedStep, StepForm, StepInputs

pytest.importorskip("llvmlite", reason="the extra kernels is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
K, ROWS, STEPS = 3, 7, 4


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def net():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(21, 18), nn.ReLU(), nn.Linear(18, 5))


def made_clients():
    params = {
        n: torch.stack([p.detach() * (1 + k / 9) for k in range(K)]) for n, p in net().named_parameters()
    }
    return StackedClients(params, {}, {}, {}, {}, {}, torch.ones(K, dtype=torch.bool))


def inputs():
    """Of STEPS steps, with rates that fall."""
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(STEPS, K, ROWS, 21, generator=g), torch.randint(0, 5, (STEPS, K, ROWS), generator=g)
    draws, w = torch.zeros(STEPS, K, dtype=torch.int64), torch.full((STEPS, K, ROWS), 1 / ROWS)
    return draws, x, y, w, [{"minus_lr": torch.full((K,), -0.3 / (i + 1))} for i in range(STEPS)]


@pytest.fixture(scope="module")
def stacked():
    """The step that is compiled."""
    optimizer = SGD(0.3)
    form = StepForm(tuple(dict(net().named_parameters())), (), (), optimizer.form([optimizer]))
    recipe = Recipe(optimizer=optimizer, batch_size=ROWS, steps=1, metrics=("accuracy",))
    return StackedStep(net(), recipe, form)


@pytest.fixture(scope="module")
def step(compiler, stacked):
    return compiled.compile_step(stacked.traced, made_clients(), StepInputs(*inputs()).first())


def one_by_one(step, clients, *given):
    return run_steps(lambda *arguments: step(*arguments), clients, StepInputs(*given))


def tensors(clients, out):
    return {**clients.params, "losses": out.losses, **out.metrics}


def shifted(t, by):
    """The same numbers elsewhere: ``by`` numbers into memory of their own."""
    return torch.cat([t.new_zeros(by), t.flatten()])[by:].view_as(t)


def random_inputs(draw):
    """Clients and inputs of a few steps, some dead or about to die, somewhere in memory."""
    clients, n_steps = made_clients(), draw.randint(1, 6)
    g = torch.Generator().manual_seed(draw.randrange(1 << 30))
    x = torch.randn(n_steps, K, ROWS, 21, generator=g)
    y = torch.randint(0, 5, (n_steps, K, ROWS), generator=g)
    counts = torch.randint(1, ROWS + 1, (n_steps, K, 1), generator=g)
    w = (torch.arange(ROWS) < counts) / counts
    for _ in range(draw.choice([0, 0, 1, 2])):
        x[draw.randrange(n_steps), draw.randrange(K), 0, draw.randrange(21)] = draw.choice(
            [torch.nan, torch.inf]
        )
    clients.alive[:] = torch.rand(K, generator=g) < 0.8
    rates = [{"minus_lr": -torch.rand(K, generator=g)} for _ in range(draw.choice([1, n_steps]))]
    draws = torch.zeros(n_steps, K, dtype=torch.int64)
    given = [shifted(t, draw.randint(0, 9)) for t in (draws, x, y, w)]
    return clients, given, rates * (n_steps // len(rates))


@pytest.mark.parametrize("way", ["compiled", "plain"])
def test_steps_of_random_inputs_are_the_steps_one_by_one(step, stacked, way):
    """Of the compiled step, and of the plain one, which stacks the clients with torch's own vmap."""
    draw = random.Random(way)
    for _ in range(24):
        ours, given, scalars = random_inputs(draw)
        theirs = copy.deepcopy(ours)
        was_alive = ours.alive.clone()
        out = step.steps(ours, StepInputs(*given, scalars))
        expected = one_by_one({"compiled": step, "plain": stacked}[way], theirs, *given, scalars)
        assert out.losses.shape == (len(scalars), K)
        assert torch.equal(ours.alive, theirs.alive)
        found, wanted = tensors(ours, out), tensors(theirs, expected)
        for name, t in wanted.items():
            torch.testing.assert_close(found[name], t, rtol=1e-4, atol=1e-5, equal_nan=True)
        for name, t in made_clients().params.items():  # what was dead is as it was
            assert torch.equal(ours.params[name][~was_alive], t[~was_alive])


def test_what_a_kernel_refuses_is_an_error(step):
    draws, x, y, w, scalars = inputs()
    with pytest.raises(RuntimeError, match="out of bounds"):
        step.steps(made_clients(), StepInputs(draws, x, y + 5, w, scalars))


def test_other_arguments_are_stepped_one_by_one(step):
    draws, x, y, w, scalars = inputs()
    expected = step.steps(made_clients(), StepInputs(draws, x, y, w, scalars))
    apart = x.transpose(-1, -2).contiguous().transpose(-1, -2)
    assert step.steps(made_clients(), StepInputs(draws, apart, y, w, scalars)) is None
    torch.set_num_threads(2)
    try:
        assert step.steps(made_clients(), StepInputs(draws, x, y, w, scalars)) is None
        out = run_steps(step, made_clients(), StepInputs(draws, x, y, w, scalars))
    finally:
        torch.set_num_threads(1)
    torch.testing.assert_close(out.losses, expected.losses, rtol=0, atol=1e-6)


# --- what is recorded ---------------------------------------------------------------------------------


def written(body, unpacked="    a, b = args\n", **names):
    """A function as the compiler writes it."""
    own = {
        "torch": torch,
        "empty_strided_cpu": torch._C._dynamo.guards._empty_strided_cpu,
        "reinterpret_tensor": torch._C._dynamo.guards._reinterpret_tensor,
        "extern_kernels": types.SimpleNamespace(bmm=torch.bmm),
        **names,
    }
    exec("def call(self, args):\n" + unpacked + "    args.clear()\n" + body, own)
    return own["call"]


MADE = "    c = empty_strided_cpu((2, 3, 3), (9, 3, 1), torch.float32)\n"
MULTIPLIED = MADE + "    extern_kernels.bmm(a, reinterpret_tensor(b, (2, 4, 3), (12, 1, 4), 0), out=c)\n"
FACTORS = [torch.ones(2, 3, 4), torch.ones(2, 3, 4)]


def test_an_argument_without_bytes_is_no_obstacle_and_shared_memory_is():
    unpacked = "    a, b = args[:2]\n"
    function = written(MULTIPLIED + "    return (c, )\n", unpacked)
    recording = record(function, [*FACTORS, torch.zeros(2, 3, 0), torch.zeros(2, 0)])
    assert recording is not None
    (product,) = recording.calls
    assert isinstance(product, Product)
    assert product.into.memory == recording.n_arguments == 4
    assert record(function, [FACTORS[0], FACTORS[0]]) is None
    assert record(written("    return (b, )\n", unpacked), [FACTORS[0], torch.zeros(2, 0)]) is None


@pytest.mark.parametrize(
    "body",
    [
        MULTIPLIED + "    torch.relu_(c)\n    return (c, )\n",
        MULTIPLIED + "    return (self.partitions[0](c), )\n",
        MADE + "    extern_kernels.bmm(a, constant0, out=c)\n    return (c, )\n",
        MADE + "    extern_kernels.mm(a, b, out=c)\n    return (c, )\n",
        MULTIPLIED + "    return (c, 3)\n",
        MADE + "    cpp_fused_add_0(a, c)\n    return (c, )\n",
    ],
    ids=["another operation", "parts", "constant", "another product", "number", "kernel without library"],
)
def test_what_is_not_known_is_not_recorded(body):
    function = written(body, constant0=FACTORS[1], cpp_fused_add_0=lambda *_: None)
    assert record(function, FACTORS) is None
    assert record(torch.relu, FACTORS) is None


def test_no_steps_in_one_call_where_the_numbers_are_others(step, monkeypatch):
    draws, x, y, w, scalars = inputs()
    example = [*made_clients().flat(), draws[0], x[0], y[0], w[0], *scalars[0].values()]
    before = [t.clone() for t in example]
    run, finish = step._run, step._finish
    assert replayed_steps(run, finish, example, 2) is not None
    wrong = dataclasses.replace(finish, updates=finish.updates[:1])
    real = made.record
    monkeypatch.setattr(made, "record", lambda function, given: real(run.function, given))
    other = DirectCall(lambda given: run(*given))
    assert replayed_steps(other, finish, example, 2) is not None
    assert replayed_steps(other, lambda *_: None, example, 2) is None
    monkeypatch.setattr(made, "make_replay", lambda r, _, *rest: make_replay(r, wrong, *rest))
    assert replayed_steps(other, finish, example, 2) is None
    assert all(map(torch.equal, example, before))


def test_no_steps_in_one_call_without_a_kernel_for_products(step, monkeypatch, caplog):
    draws, x, y, w, scalars = inputs()
    example = [*made_clients().flat(), draws[0], x[0], y[0], w[0], *scalars[0].values()]
    monkeypatch.setattr(replay, "program_for", lambda *_: None)
    assert replayed_steps(step._run, step._finish, example, 2) is None

    def fails(*_):
        raise OSError("no compiler")

    monkeypatch.setattr(made, "make_replay", fails)
    assert replayed_steps(step._run, step._finish, example, 2) is None
    assert "no compiler" in caplog.text


BUFFERS = st.integers(0, 7)


@given(st.dictionaries(BUFFERS, st.integers(1, 400)), st.lists(st.lists(BUFFERS, max_size=4), max_size=12))
def test_buffers_in_use_together_lie_apart(sizes, uses):
    offsets, n_bytes = laid_out(sizes, uses)
    assert set(offsets) == {b for call in uses for b in call if b in sizes}
    lives = {b: [i for i, call in enumerate(uses) if b in call] for b in offsets}
    for a in offsets:
        assert offsets[a] % ALIGNMENT == 0
        assert 0 <= offsets[a] <= offsets[a] + sizes[a] <= n_bytes
        for b in offsets:
            meet = lives[a][0] <= lives[b][-1] and lives[b][0] <= lives[a][-1]
            apart = offsets[a] + sizes[a] <= offsets[b] or offsets[b] + sizes[b] <= offsets[a]
            assert a == b or apart or not meet
