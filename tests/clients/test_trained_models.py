"""What people train, held against serial training: layers that fuse, and those that are named and do not."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

from evenload.clients import SGD, Recipe, train
from evenload.clients.spread.equivalence_check import difference

D, SIZES = 8, (6, 10, 3)
RECIPE = Recipe(optimizer=SGD(0.05, momentum=0.9), batch_size=4, steps=3)


class Net(nn.Module):
    """Modules, and a function of them and the input that gives the outputs."""

    def __init__(self, forward, *modules):
        super().__init__()
        self.parts, self.run = nn.ModuleList(modules), forward

    def forward(self, x):
        return self.run(self, self.parts, x)


def text(forward, *modules):
    """Embedded words -> ``forward`` -> the mean over places -> a layer."""
    return Net(
        lambda net, m, x: m[1](forward(net, m[2:], m[0](x), x).mean(1)),
        nn.Embedding(11, D),
        nn.Linear(D, 4),
        *modules,
    )


def heads(p=0.0, **kwargs):
    return text(
        lambda net, m, h, x: m[0](h, h, h, **kwargs)[0], nn.MultiheadAttention(D, 2, p, batch_first=True)
    )


def encoder(**kwargs):
    return text(
        lambda net, m, h, x: m[0](h), nn.TransformerEncoderLayer(D, 2, 16, batch_first=True, **kwargs)
    )


def causal_encoder():
    mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    layer = nn.TransformerEncoderLayer(D, 2, 16, batch_first=True)
    return text(lambda net, m, h, x: m[0](h, mask, is_causal=True), nn.TransformerEncoder(layer, 2))


def attention(**options):
    def run(net, m, h, x):
        q, k, v = m[0](h).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        given = {name: make(net, x) for name, make in options.items()}
        return F.scaled_dot_product_attention(q, k, v, **given).transpose(1, 2).flatten(2)

    return text(run, nn.Linear(D, 3 * D))


def grouped_attention():
    def run(net, m, h, x):
        q, k, v = m[0](h).split((D, 4, 4), -1)
        q, k, v = (t.unflatten(-1, (-1, 2)).transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True, scale=0.3).transpose(1, 2).flatten(2)

    return text(run, nn.Linear(D, 16))


def vit():
    layer = nn.TransformerEncoderLayer(D, 2, 16, batch_first=True, norm_first=True, activation="gelu")

    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def run(net, m, x):
        patches = m[0](x).flatten(2).transpose(1, 2)
        return m[2](m[1](torch.cat([net.first.expand(len(x), -1, -1), patches], 1))[:, 0])

    net = Net(
        run,
        nn.Conv2d(2, D, 3, 3),
        encoder,
        nn.Linear(D, 4),
    )
    net.first = nn.Parameter(torch.full((1, 1, D), 0.1))
    return net


def mlp(*between, norm=lambda layer: layer):
    return nn.Sequential(norm(nn.Linear(12, D)), *between, nn.Linear(D, 4))


def reused():
    """One dropout and one normalisation, each in two places."""
    drop, norm = nn.Dropout(0.5), nn.BatchNorm1d(12)
    return nn.Sequential(norm, drop, nn.Linear(12, 12), nn.Tanh(), drop, norm, nn.Linear(12, 4))


def noisy(noise):
    return Net(lambda net, m, x: m[1](noise(net, m[0](x))), nn.Linear(12, D), nn.Linear(D, 4))


class Reversed(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return -0.3 * grad


def hooked(net, h):
    if h.requires_grad:
        h.register_hook(lambda grad: 0.5 * grad)
    return h


def bag(**kwargs):
    return nn.Sequential(nn.EmbeddingBag(11, D, **kwargs), nn.Linear(D, 4))


def stacked(kind):
    return text(lambda net, m, h, x: m[0](h)[0], kind(D, D, 2, batch_first=True, dropout=0.3))


FUSED = {
    "heads": ("text", lambda: heads(need_weights=False)),
    "heads with weights": ("text", heads),
    "heads with dropout": ("text", lambda: heads(0.2, need_weights=False)),
    "heads with weights and dropout": ("text", lambda: heads(0.2)),
    "masked heads": (
        "text",
        lambda: text(
            lambda net, m, h, x: m[0](h, h, h, key_padding_mask=(x == 0) & (x[:, :1] != 0))[0],
            nn.MultiheadAttention(D, 2, batch_first=True),
        ),
    ),
    "encoder layer": ("text", encoder),
    "encoder layer, norm first": ("text", lambda: encoder(norm_first=True, activation="gelu")),
    "causal encoder": ("text", causal_encoder),
    "transformer": (
        "text",
        lambda: text(lambda net, m, h, x: m[0](h, h), nn.Transformer(D, 2, 1, 1, 16, batch_first=True)),
    ),
    "attention": ("text", attention),
    "causal attention": ("text", lambda: attention(is_causal=lambda net, x: True)),
    "masked attention": ("text", lambda: attention(attn_mask=lambda net, x: (x != 0)[:, None, None, :])),
    "biased attention": (
        "text",
        lambda: attention(attn_mask=lambda net, x: x[:, None, None, :].to(torch.float64) / 9),
    ),
    "attention with dropout": (
        "text",
        lambda: attention(dropout_p=lambda net, x: 0.2 if net.training else 0.0),
    ),
    "grouped attention": ("text", grouped_attention),
    "vision transformer": ("picture", vit),
    "weight norm": ("vector", lambda: mlp(norm=parametrizations.weight_norm)),
    "bag": ("text", bag),
    "bag of sums": ("text", lambda: bag(mode="sum", padding_idx=0)),
    "bag of maxima": ("text", lambda: bag(mode="max", padding_idx=0)),
    "bilinear": (
        "vector",
        lambda: Net(lambda net, m, x: m[0](x[:, :6], x[:, 6:]), nn.Bilinear(6, 6, 4)),
    ),
    "alpha dropout": ("vector", lambda: mlp(nn.SELU(), nn.AlphaDropout(0.2))),
    "alpha dropout of channels": (
        "picture",
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.FeatureAlphaDropout(0.3), nn.Flatten(), nn.Linear(64, 4)
        ),
    ),
    "modules in several places": ("vector", reused),
    "batch norm": ("vector", lambda: mlp(nn.BatchNorm1d(D), nn.Tanh())),
    "batch norm, cumulative": ("vector", lambda: mlp(nn.BatchNorm1d(D, momentum=None, affine=False))),
    "batch norm over processes": ("vector", lambda: mlp(nn.SyncBatchNorm(D))),
    "a gradient that is no derivative": ("vector", lambda: noisy(lambda net, h: Reversed.apply(h))),
    "a hook on a gradient": ("vector", lambda: noisy(hooked)),
    "a part without a gradient": ("vector", lambda: noisy(lambda net, h: h + net.parts[0].bias.detach())),
    "embedding with padding": (
        "text",
        lambda: nn.Sequential(nn.Embedding(11, D, padding_idx=0), nn.Flatten(), nn.Linear(40, 4)),
    ),
    "dropout by function": ("vector", lambda: noisy(lambda net, h: F.dropout(h, 0.3, net.training))),
    "channel dropout by function": (
        "vector",
        lambda: noisy(lambda net, h: F.dropout1d(h, 0.3, net.training)),
    ),
    "noise": ("vector", lambda: noisy(lambda net, h: h + 0.1 * torch.randn_like(h) * torch.rand(len(h), D))),
    "coins": ("vector", lambda: noisy(lambda net, h: h * torch.bernoulli(torch.full_like(h, 0.7)))),
    "random slopes": ("vector", lambda: mlp(nn.RReLU())),
    "LSTM with dropout": ("text", lambda: stacked(nn.LSTM)),
    "GRU with dropout": ("text", lambda: stacked(nn.GRU)),
}
SERIAL = {
    "spectral norm": ("vector", lambda: mlp(norm=parametrizations.spectral_norm), "div.out"),
    "renormed embedding": (
        "text",
        lambda: nn.Sequential(nn.Embedding(11, D, max_norm=1.0), nn.Flatten(), nn.Linear(40, 4)),
        "embedding_renorm_",
    ),
    "uncounted draws": (
        "vector",
        lambda: noisy(lambda net, h: h * torch.empty_like(h).exponential_()),
        "draws random numbers by itself",
    ),
    "instance statistics": (
        "picture",
        lambda: nn.Sequential(nn.InstanceNorm2d(2, track_running_stats=True), nn.Flatten(), nn.Linear(72, 4)),
        "away from serial",
    ),
}


def clients(kind, sizes=SIZES):
    g = torch.Generator().manual_seed(1)
    shapes = {"vector": (12,), "picture": (2, 6, 6), "text": (5,)}
    data = []
    for n in sizes:
        shape = (n, *shapes[kind])
        numbers = torch.randn(shape, generator=g, dtype=torch.float64)
        x = torch.randint(0, 11, shape, generator=g) if kind == "text" else numbers
        data.append((x, torch.randint(0, 4, (n,), generator=g)))
    return data


def both(kind, make, strategy="fused:2", recipe=RECIPE):
    runs = [
        train(lambda: make().double(), clients(kind), recipe, strategy=s, seed=4)
        for s in ("serial", strategy)
    ]
    return runs[1], max(difference(a.state, b.state) for a, b in zip(*runs, strict=True))


@pytest.mark.parametrize("name", FUSED)
def test_what_is_fused_is_the_serial_result(name):
    run, far = both(*FUSED[name])
    assert run.plan.strategy.inner == "fused", run.plan.explain()
    assert far <= 1e-12
    assert difference(run[0].state, run[1].state) > 1e-4


@pytest.mark.parametrize("name", SERIAL)
def test_what_is_not_fused_is_trained_serially_and_named(name):
    kind, make, reason = SERIAL[name]
    run, far = both(kind, make)
    assert run.plan.strategy.inner == "eager"
    assert reason in run.plan.why, run.plan.explain()
    assert far == 0


def test_drawn_numbers_do_not_depend_on_strategy_company_or_torchs_generator():
    kind, make = FUSED["encoder layer"]
    torch.manual_seed(1)
    run, far = both(kind, make, "threads*2/fused:2")
    torch.manual_seed(2)
    again, _ = both(kind, make)
    assert far <= 1e-12
    assert max(difference(a.state, b.state) for a, b in zip(run, again, strict=True)) <= 1e-12
    alone = train(lambda: make().double(), clients(kind)[2:], RECIPE, strategy="serial", seed=4, ids=[2])
    assert difference(alone[0].state, run[2].state) <= 1e-12


def test_a_tensor_that_was_computed_once_from_parameters_is_refused():
    def make():
        model = mlp()
        model[0].doubled = 2 * model[0].weight
        return model

    with pytest.raises(ValueError, match=r"(?s)attribute 'doubled' of 0 .*compute it in forward"):
        train(make, clients("vector"), RECIPE)
