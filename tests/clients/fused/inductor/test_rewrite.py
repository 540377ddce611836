"""Updates within products: the weights of the plain step, and rows of dead clients left as they are."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from evenload.clients import SGD, Recipe
from evenload.clients.fused import compiled
from evenload.clients.fused.inductor import rewrite
from evenload.clients.fused.inductor.rewrite import take_out_updates, turn_narrow
from evenload.clients.fused.speedups import PLAIN
from evenload.clients.step.fuse import StackedClients, StackedStep, StepArguments, StepForm

K, ROWS, CLASSES = 4, 6, 5


class LowRank(nn.Module):
    """The gradient of ``a`` has ``b`` as a factor, which the same step changes."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(CLASSES, 3)), nn.Parameter(torch.randn(3, 20))

    def forward(self, x):
        return x.flatten(1) @ (self.a @ self.b[:, :]).t()


class Tokens(nn.Module):
    """Products over rows and places, and one layer used twice: its gradient is a sum, no product."""

    def __init__(self):
        super().__init__()
        self.first, self.twice, self.last = nn.Linear(20, 18), nn.Linear(18, 18), nn.Linear(18, CLASSES)

    def forward(self, x):
        x = torch.tanh(self.first(x.view(len(x), 2, 20)))
        return self.last(self.twice(torch.tanh(self.twice(x)))[:, 0])


MODELS = {
    "images": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(40, 18), nn.ReLU(inplace=True), nn.Linear(18, CLASSES)
    ),
    "one layer": lambda: nn.Sequential(nn.Flatten(), nn.Linear(40, CLASSES, bias=False)),
    "few inputs": lambda: nn.Sequential(nn.Flatten(), nn.Linear(40, 3), nn.Tanh(), nn.Linear(3, 20)),
    "low rank": lambda: nn.Sequential(nn.Flatten(), nn.Linear(40, 20), LowRank()),
    "tokens": Tokens,
}
TAKEN = {"images": 2, "one layer": 1, "few inputs": 1, "low rank": 1, "tokens": 2}


def stepped(model, optimizer=None, dtype=torch.float64):
    """A stacked step, its clients of K clients, and arguments for one call."""
    torch.manual_seed(0)
    twins = [MODELS[model]().to(dtype) for _ in range(K)]
    optimizer = optimizer or SGD(lr=0.1)
    form = optimizer.form([optimizer])
    names = tuple(name for name, _ in twins[0].named_parameters())
    params = {n: torch.stack([t.get_parameter(n).detach() for t in twins]) for n in names}
    state = {
        slot: {n: torch.zeros_like(t) for n, t in params.items()} for slot in optimizer.state_names(form)
    }
    clients = StackedClients(params, state, {}, {}, {}, {}, torch.ones(K, dtype=torch.bool))
    stacked = StackedStep(
        twins[0], Recipe(optimizer=optimizer, batch_size=ROWS, steps=1), StepForm(names, (), (), form)
    )
    x, y = torch.randn(K, ROWS, 1, 4, 10, dtype=dtype), torch.randint(0, CLASSES, (K, ROWS))
    numbers = {"minus_lr": -torch.linspace(0.01, 0.1, K, dtype=dtype)}
    numbers |= {name: torch.full((K,), 0.5, dtype=dtype) for name in ("momentum", "gain", "decay")}
    w = torch.full((K, ROWS), 1 / ROWS, dtype=dtype)
    return stacked, clients, StepArguments(torch.zeros(K, dtype=torch.int64), x, y, w, numbers)


def copied(clients):
    tables = [{n: t.clone() for n, t in table.items()} for table in (clients.params, clients.buffers)]
    state = {slot: {n: t.clone() for n, t in table.items()} for slot, table in clients.state.items()}
    return StackedClients(tables[0], state, tables[1], {}, {}, {}, clients.alive.clone())


@pytest.fixture
def traced(monkeypatch):
    """``compile_step`` without a compiler: the graph itself runs. Says how many updates were taken out."""
    taken = []

    def counted(graph):
        taken.append(take_out(graph))
        return taken[-1]

    take_out = rewrite.take_out_updates
    monkeypatch.setattr(rewrite, "take_out_updates", counted)
    uncompiled = dataclasses.replace(PLAIN, rewrite=rewrite.rewrite, compile=lambda graph, *_: graph)
    monkeypatch.setattr(compiled, "find_speedups", lambda: uncompiled)

    def trace(stacked, clients, arguments):
        step, updates = compiled.compile_step(stacked.traced, clients, arguments), taken.pop()
        return step, len(updates.updates) if updates else 0

    return trace


def spoiled(clients, arguments):
    """Client 1 was dead before; client 2 has a NaN in its rows; client 3 an infinite weight."""
    clients.alive[1] = False
    x = arguments.x.clone()
    x[1], x[2, 0, 0, 0, 0] = torch.nan, torch.nan
    next(iter(clients.params.values()))[3].view(-1)[:2] = torch.inf
    return arguments._replace(x=x)


@pytest.mark.parametrize("model", MODELS)
def test_a_step_with_updates_in_products_is_the_plain_step(model, traced):
    stacked, clients, arguments = stepped(model)
    plain, start = copied(clients), copied(clients)
    step, n_taken = traced(stacked, clients, arguments)
    assert n_taken == TAKEN[model]
    for _ in range(3):
        out, expected = step(clients, arguments), stacked(plain, arguments)
        torch.testing.assert_close(out.losses, expected.losses, rtol=0, atol=1e-12)
    for name, t in clients.params.items():
        torch.testing.assert_close(t, plain.params[name], rtol=0, atol=1e-12)
        assert (t - start.params[name]).abs().amax() > 1e-6
    # Dead clients stay as they are, and the others do not notice.
    bad, whole, before = spoiled(clients, arguments), plain, copied(clients)
    whole.alive[:] = True
    step(whole, arguments)
    losses = step(clients, bad).losses
    assert clients.alive.tolist() == [True, False, False, False]
    assert losses[0].isfinite()
    for name, t in clients.params.items():
        torch.testing.assert_close(t[0], whole.params[name][0], rtol=0, atol=1e-12)
        assert torch.equal(t[1:], before.params[name][1:])  # bitwise: none of them is a NaN


def descend(p, gradient, rate, alive):
    """As the traced step of a clients does it."""
    p.copy_(torch.where(alive.view(-1, 1, 1), p.clone().addcmul_(gradient, rate.view(-1, 1, 1)), p))


def plain(p, a, b):
    return p.sum((1, 2)), torch.bmm(a, b)


def turned(p, a, b):
    return p.sum((1, 2)), torch.bmm(b.transpose(1, 2), a.transpose(1, 2)).transpose(1, 2)


def used_again(p, a, b):
    gradient = torch.bmm(a, b)
    return gradient.sum((1, 2)), gradient


def in_part(p, a, b):
    return p.sum((1, 2)), torch.bmm(a[:, :, 1:], b[:, 1:])


def long(p, a, b):
    return p.sum((1, 2)), torch.bmm(torch.cat([a, a], 2), torch.cat([b, b], 1))  # more numbers than p has


def of_itself(p, a, b):
    return p.sum((1, 2)), torch.bmm(a, p)


def written_later(p, a, b):
    hidden = torch.tanh(a)
    gradient = torch.bmm(hidden, b)
    hidden[:, 0].zero_()
    return hidden.sum((1, 2)), gradient


@pytest.mark.parametrize(
    ("product", "is_taken"),
    [(plain, 1), (turned, 1), (used_again, 0), (in_part, 0), (long, 0), (of_itself, 0), (written_later, 0)],
)
def test_only_what_may_be_computed_afterwards_is_taken_out(product, is_taken):
    def step(p, a, b, rate, alive):
        own, gradient = product(p, a, b)
        alive_now = alive & own.isfinite()
        descend(p, gradient, rate, alive_now)
        alive.copy_(alive_now)
        return [own]

    g = torch.Generator().manual_seed(0)
    shapes = (K, 17, 20), (K, 17, 17), (K, 17, 20), (K,)
    example = [torch.randn(s, generator=g, dtype=torch.float64) for s in shapes]
    example.append(torch.ones(K, dtype=torch.bool))
    runs = [[t.clone() for t in example] for _ in range(2)]
    graph = make_fx(step)(*[t.clone() for t in example])
    updates = take_out_updates(graph)
    assert (updates is not None) == is_taken
    out = graph(*runs[0])
    if updates:
        updates(runs[0], out[1:])
    torch.testing.assert_close(out[:1], step(*runs[1]), rtol=0, atol=0)
    torch.testing.assert_close(runs[0], runs[1], rtol=0, atol=1e-12)
    assert not torch.equal(runs[0][0], example[0])


def flattened(a, b):
    product = torch.bmm(a, b)
    return torch.relu(product).view(len(a), -1)  # of a turned product there is no such view


def summed(a, b):
    return torch.bmm(a, b).sum(1)


@pytest.mark.parametrize("step", [flattened, summed])
@pytest.mark.parametrize("columns", [1, 5, 15, 16])
def test_a_turned_product_may_be_used_as_before(step, columns):
    generator = torch.Generator().manual_seed(0)
    example = [torch.randn(3, 20, 6, generator=generator), torch.randn(3, 6, columns, generator=generator)]
    graph = turn_narrow(make_fx(step)(*example), example)
    names = [str(node.target) for node in graph.graph.nodes]
    assert ("aten.transpose.int" in names) == (columns < 16)
    assert ("aten.clone.default" in names) == (step is flattened and 1 < columns < 16)
    torch.testing.assert_close(graph(*example), step(*example))
