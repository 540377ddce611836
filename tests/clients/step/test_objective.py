"""Augmentation and precision: the same in every strategy, and really there."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from clients.linear_clients import tasks_of
from forked_workers import python_command
from torch import nn

from evenload.clients import SGD, Recipe, Trainer, train
from evenload.clients.fused.rules import with_rules
from evenload.clients.step import objective
from evenload.clients.step.objective import Draws
from evenload.clients.tune.step_work import bytes_per_client
from evenload.errors import ConfigError

COMPILED = pytest.param("fused-compiled:4", marks=pytest.mark.slow)
STRATEGIES = ["threads*2/eager", "fused:3", "fused:5", "threads*2/fused:2", COMPILED]


def flip_and_shift(x, draws):
    """Mirrors some rows, and adds noise to all: what pictures and signals get."""
    mirrored = torch.where(draws.coin(0.5, len(x))[:, None], x.flip(1), x)
    return mirrored + 0.1 * draws.uniform(*x.shape).to(x.dtype)


def clients(n=5, dtype=torch.float64):
    g = torch.Generator().manual_seed(3)
    sizes = (7, 4, 9, 5, 6)[:n]
    return [
        (torch.randn(m, 6, generator=g, dtype=dtype), torch.randint(0, 3, (m,), generator=g)) for m in sizes
    ]


def model():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3)).double()


def wide():
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))


def apart(a, b):
    return max(
        float((x.state[n] - y.state[n]).abs().max()) for x, y in zip(a, b, strict=True) for n in x.state
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_augmentation_does_not_depend_on_the_strategy(strategy):
    recipe = Recipe(optimizer=SGD(0.1, momentum=0.9), batch_size=4, epochs=2, augment=flip_and_shift)
    serial = train(model, clients(), recipe, strategy="serial", seed=5)
    other = train(model, clients(), recipe, strategy=strategy, seed=5)
    assert str(other.plan.strategy).endswith(strategy.rpartition("/")[2])
    assert apart(serial, other) < 1e-12
    plain = train(model, clients(), Recipe(optimizer=SGD(0.1, momentum=0.9), batch_size=4, epochs=2), seed=5)
    assert apart(serial, plain) > 1e-3


def test_draws_are_uniform_differ_by_call_and_do_not_see_padding():
    draws = Draws(torch.tensor(77))
    a, b = draws.uniform(40, 100), draws.uniform(40, 100)
    assert float(a.mean()) == pytest.approx(0.5, abs=0.02)
    assert float(a.min()) >= 0
    assert float(a.max()) < 1
    assert not torch.equal(a, b)
    assert torch.equal(Draws(torch.tensor(77)).uniform(3, 100), a[:3])
    assert not torch.equal(Draws(torch.tensor(78)).uniform(40, 100), a)
    assert float(draws.coin(0.25, 10_000).float().mean()) == pytest.approx(0.25, abs=0.03)


def test_random_numbers_of_torch_in_an_augmentation_are_named():
    recipe = Recipe(batch_size=4, augment=lambda x, draws: x + torch.empty_like(x).uniform_())
    found = train(model, clients(), recipe, strategy="fused:4")
    assert found.plan.strategy.inner == "eager"
    assert "random numbers" in found.plan.why


def attending():
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
    return nn.Sequential(nn.Unflatten(1, (6, 1)), nn.Linear(1, 8), layer, nn.Flatten(), nn.Linear(48, 3))


@pytest.mark.parametrize(
    ("make", "strategy"),
    [
        (wide, "fused:4"),
        (attending, "fused:4"),
        pytest.param(wide, "fused-compiled:4", marks=pytest.mark.slow),
    ],
)
def test_bfloat16_is_bfloat16_and_close_to_serial(make, strategy):
    data = clients(dtype=torch.float32)
    recipe = Recipe(optimizer=SGD(0.1), batch_size=4, steps=4, precision="bfloat16")
    full = train(make, data, Recipe(optimizer=SGD(0.1), batch_size=4, steps=4), strategy="serial", seed=1)
    serial = train(make, data, recipe, strategy="serial", seed=1)
    other = train(make, data, recipe, strategy=strategy, seed=1)
    assert other.plan.strategy.inner == strategy.partition(":")[0]
    assert 1e-5 < apart(full, serial) < 2e-2
    assert apart(serial, other) < 5e-3
    assert all(t.dtype == torch.float32 for t in other[0].state.values())


def test_what_a_custom_step_would_ignore_is_refused():
    with pytest.raises(ConfigError, match="augment and precision"):
        Recipe(step=lambda *a: 0.0, precision="bfloat16")
    with pytest.raises(ConfigError, match="float16 needs its losses scaled"):
        Recipe(precision="float16")


def crop(x, draws):
    """Four of six columns, from a random one on."""
    first = (draws.uniform(len(x)) * 3).long()
    return torch.gather(x, 1, first[:, None] + torch.arange(4))


def test_an_augmentation_may_change_the_shape():
    """Labels and memory are judged by what the model is shown, not by what the client holds."""
    recipe = Recipe(optimizer=SGD(0.1), batch_size=4, augment=crop)
    net = lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()  # noqa: E731
    data = clients()
    data[2] = (data[2][0], data[2][1] + 3)
    serial, fused = (
        train(net, data, recipe, strategy=s, seed=2, on_error="return") for s in ("serial", "fused:3")
    )
    assert fused.plan.strategy.inner == "fused", fused.plan.explain()
    assert [r.status for r in fused] == ["ok", "ok", "failed", "ok", "ok"]
    assert "the model's classes are 0 to 2" in str(fused[2].error)
    assert apart(serial, fused) < 1e-12
    with Trainer(net) as trainer:
        assert bytes_per_client(trainer.model, tasks_of(trainer.model, data, recipe)[0]) > 0


def test_a_draw_is_never_one(monkeypatch):
    """The largest double below one is nearer to one than to any other float32."""
    monkeypatch.setattr(
        "evenload.clients.step.objective.uniform_of",
        lambda *_: torch.tensor([1 - 2.0**-53, 0.0], dtype=torch.float64),
    )
    assert Draws(torch.tensor(1)).uniform(2).tolist() == [1 - 2.0**-24, 0.0]


def test_rules_train_convolutions_in_bfloat16():
    g = torch.Generator().manual_seed(1)
    data = [(torch.randn(8, 2, 8, generator=g), torch.randint(0, 3, (8,), generator=g)) for _ in range(3)]
    make = lambda: nn.Sequential(nn.Conv1d(2, 4, 3), nn.Tanh(), nn.Conv1d(4, 3, 6), nn.Flatten())  # noqa: E731
    recipe = Recipe(optimizer=SGD(0.1), batch_size=4, precision="bfloat16")
    serial, rules = (train(make, data, recipe, strategy=s, seed=1) for s in ("serial", "rules:3"))
    assert rules.plan.strategy.inner == "rules", rules.plan.explain()
    assert apart(serial, rules) < 5e-3


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("has_state", [False, True])
def test_recurrent_rules_are_of_torchs_precision(kind, has_state):
    torch.manual_seed(0)
    net = kind(4, 8, num_layers=2, batch_first=True)
    rule, x, state = with_rules(nn.Sequential(net))[0], torch.randn(3, 5, 4), torch.randn(2, 3, 8)
    given = ((state, state) if kind is nn.LSTM else state) if has_state else None
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        ours = [t for part in rule(x, given) for t in part]
        try:
            theirs = [t for part in net(x, given) for t in part]
        except RuntimeError as error:
            pytest.skip(f"torch cannot compute it on this processor: {error}")
    assert [t.dtype for t in ours] == [t.dtype for t in theirs]
    assert max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True)) <= 2e-2


LSTM_PROGRAM = """
import warnings
warnings.simplefilter("error")
import torch
from torch import nn
from evenload.clients import SGD, Recipe, train
from evenload.clients.step.objective import has_bfloat16_lstm

class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.read, self.out = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.read(x)[0][:, -1])

if has_bfloat16_lstm():
    raise SystemExit(77)
torch.manual_seed(0)
start = Reader()
rows = [(torch.randn(8, 5, 4), torch.randint(0, 3, (8,))) for _ in range(3)]
recipe = Recipe(optimizer=SGD(0.1), batch_size=8, epochs=3, precision="bfloat16")
results = {s: train(start, rows, recipe, strategy=s, seed=1) for s in ("serial", "fused:3", "rules:3")}
torch.backends.mkldnn.enabled = False  # the way in which torch itself can
for at, (x, y) in enumerate(rows):
    net = Reader()
    net.load_state_dict(start.state_dict())
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
    for name, result in results.items():
        apart = max(float((result[at].state[key] - t).abs().max()) for key, t in net.state_dict().items())
        assert apart <= 1e-3, (name, apart)
        assert name in str(result.plan.strategy) or name == "serial", result.plan.explain()
        assert "LSTM is computed by torch's plain kernels" in result.plan.explain()
"""


def test_an_lstm_trains_in_bfloat16_where_torchs_library_has_none(tmp_path):
    """As on a processor with AVX2 alone, by oneDNN's own variable. The oracle is a plain loop of torch's."""
    environment, program = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}, tmp_path / "program.py"
    program.write_text(LSTM_PROGRAM)
    for python in (python_command(), [sys.executable]):  # a fork may know the processor from before
        done = subprocess.run(
            [*python, program], env=environment, capture_output=True, text=True, timeout=500, check=False
        )
        if done.returncode != 77:
            break
    if done.returncode == 77:
        pytest.skip("oneDNN's variable does not lower this kind of processor")
    assert done.returncode == 0, done.stderr[-2000:]


def test_threads_with_plain_lstms_leave_torchs_library_as_it_was():
    """It is on or off for all threads, so that one must not take another's "off" for what it was."""
    cell, x, before = nn.LSTM(4, 4), torch.randn(3, 2, 4), torch.backends.mkldnn.enabled

    def work(_):
        for _ in range(50):
            with objective._PlainLSTM():
                cell(x)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert torch.backends.mkldnn.enabled == before
