"""Idioms of training with torch, each twice: as the plain loop has it, and as evenload is told.

``outcome`` compares the two on two clients of unlike size, in float64.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from clients.oracle import train_plainly
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    SequentialSampler,
    Subset,
    TensorDataset,
)

from evenload.clients import SGD, Adam, EarlyStop, ParameterGroups, Recipe, StepDecay, client_seed, train
from evenload.errors import EvenloadError

EPOCHS, BATCH, SEED = 2, 4, 1
ALLOWED = 1e-12
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "torch-idioms.md"


@dataclass(frozen=True, eq=False)
class Idiom:
    """An idiom: what of the plain loop it changes, and what of a Recipe.

    build   of a dataset (of so many rows) or of a model
    plain   changes of the plain loop;  told: fields of the Recipe
    counts  the numbers that it draws are counted, not torch's: serial training is the only other one
    """

    name: str
    build: Callable[..., Any] | None = None
    plain: dict[str, Any] = field(default_factory=dict)
    told: dict[str, Any] = field(default_factory=dict)
    counts: bool = False


# --- datasets -------------------------------------------------------------------------------------


def tensors(n):
    draws = torch.Generator().manual_seed(n)
    x = torch.randn(n, 6, generator=draws, dtype=torch.float64)
    return x, torch.randint(0, 3, (n,), generator=draws)


class Wrapper(Dataset):
    """A dataset with ``tensors`` beside its own way of giving examples."""

    def __init__(self, n, change=lambda x, y: ((x - 5) / 3, y)):
        self.tensors, self.change = tensors(n), change

    def __len__(self):
        return len(self.tensors[0])

    def __getitem__(self, i):
        return self.change(self.tensors[0][i], self.tensors[1][i])


class Negated(TensorDataset):
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return -x, y


class Dicts(Wrapper):
    def __getitem__(self, i):
        return {"x": self.tensors[0][i], "y": self.tensors[1][i]}


class Arrays(Wrapper):
    def __getitem__(self, i):
        return self.tensors[0][i].numpy(), int(self.tensors[1][i])


class Owning(Wrapper):
    """Draws from a generator of its own."""

    def __init__(self, n):
        super().__init__(n)
        self.draws = np.random.default_rng(n)

    def __getitem__(self, i):
        return self.tensors[0][i] + self.draws.normal(), self.tensors[1][i]


class Counted(Wrapper):
    """The later an example is read, the larger it is; the first ones stay."""

    def __init__(self, n):
        super().__init__(n)
        self.n_reads = 0

    def __getitem__(self, i):
        self.n_reads += 1
        return self.tensors[0][i] * (1 if i < 6 else self.n_reads), self.tensors[1][i]


class OneBuffer(Wrapper):
    """Writes each example into one and the same tensor."""

    def __getitem__(self, i):
        self.buffer = getattr(self, "buffer", torch.empty(6, dtype=torch.float64))
        return self.buffer.copy_(self.tensors[0][i]), self.tensors[1][i]


class Centred(Wrapper):
    """Reads batches, and each less its mean."""

    def __getitems__(self, at):
        x = self.tensors[0][at]
        return list(zip(x - x.mean(0), self.tensors[1][at], strict=True))


class Growing(Wrapper):
    """Has more examples once it was read."""

    def __init__(self, n):
        super().__init__(n)
        self.n_seen = n - 2

    def __len__(self):
        return self.n_seen

    def __getitem__(self, i):
        self.n_seen += i == self.n_seen - 1 and self.n_seen < len(self.tensors[0])
        return super().__getitem__(i)


class Scaling(DataLoader):
    def __iter__(self):
        return ((x * 10, y) for x, y in super().__iter__())


def by_closure(n):
    draws = np.random.default_rng(3)
    wrapper = Wrapper(n)
    wrapper.change = lambda x, y: (x + draws.normal() if y == 2 else x, y)
    return wrapper


def flipped(x, y):
    return (x.flip(0) if random.random() < 0.5 else x), y


def noisy(x, y):
    return x + torch.randn(6, dtype=torch.float64), y


DATASETS = [
    Idiom("TensorDataset", lambda n: TensorDataset(*tensors(n))),
    Idiom("transforms in `__getitem__`, with `.tensors`", Wrapper),
    Idiom("a subclass of TensorDataset", lambda n: Negated(*tensors(n))),
    Idiom("flipped labels", lambda n: Wrapper(n, lambda x, y: (x, (y + 1) % 3))),
    Idiom("a Subset of a wrapper", lambda n: Subset(Wrapper(n + 4), range(2, n + 2))),
    Idiom("a ConcatDataset", lambda n: ConcatDataset([Wrapper(n - 4), TensorDataset(*tensors(4))])),
    Idiom("arrays and ints", Arrays),
    Idiom("dicts, by an objective", Dicts),
    Idiom("`random` in `__getitem__`", lambda n: Wrapper(n, flipped)),
    Idiom("`torch.randn` in `__getitem__`", lambda n: Wrapper(n, noisy)),
    Idiom("a generator of its own", Owning),
    Idiom("a generator in a transform's closure", by_closure),
    Idiom("a count of what was read", Counted),
    Idiom("one tensor for all examples", OneBuffer),
    Idiom("`__getitems__` that centres a batch", Centred),
    Idiom("a length that grows", Growing),
    Idiom("a Subset with negative numbers", lambda n: Subset(TensorDataset(*tensors(n)), range(-n, 0))),
    Idiom(
        "a DataLoader of a part",
        lambda n: DataLoader(TensorDataset(*tensors(n)), BATCH, sampler=SequentialSampler(range(n - 2))),
    ),
    Idiom("a DataLoader with `__iter__`", lambda n: Scaling(TensorDataset(*tensors(n)), BATCH)),
    Idiom(
        "a DataLoader with a batch sampler",
        lambda n: DataLoader(
            TensorDataset(*tensors(n)), batch_sampler=BatchSampler(range(n), BATCH, drop_last=False)
        ),
    ),
]

# --- models ---------------------------------------------------------------------------------------


def mlp(hidden=5):
    return nn.Sequential(nn.Linear(6, hidden), nn.Tanh(), nn.Linear(hidden, 3)).double()


def changed(change):
    """A model that ``change`` was done to."""

    def build():
        model = mlp()
        return change(model) or model

    return build


class Body(nn.Module):
    """A model of one's own: ``self.a``, what ``fn`` does, ``self.b``."""

    def __init__(self, fn=None, **parts):
        super().__init__()
        self.a, self.b, self.n = nn.Linear(6, 5), nn.Linear(5, 3), 0
        for name, part in parts.items():
            setattr(self, name, part)
        self.fn_name = fn.__name__ if fn else None
        self.double()

    def forward(self, x):
        h = torch.tanh(self.a(x))
        return self.b(globals()[self.fn_name](self, h) if self.fn_name else h)


def by_random(model, h):
    return h * 2 if model.training and random.random() < 0.5 else h


def by_numpy(model, h):
    return h * (1 + np.random.rand()) if model.training else h


def by_torch(model, h):
    return h + torch.empty_like(h).normal_() if model.training else h


def rarely(model, h):
    model.n += 1
    return h * random.random() if model.training and model.n == 3 else h


def counting(model, h):
    model.n += 1
    return h / model.n


def by_buffer(model, h):
    model.count += 1
    return h / model.count


def by_gru(model, h):
    return model.part(h[:, None])[0][:, -1]


def by_conv(model, h):
    return model.part(h[:, None])[:, 0]


def by_heads(model, h):
    return model.part(h[:, None], h[:, None], h[:, None])[0][:, 0]


def by_checkpoint(model, h):
    return checkpoint(torch.sin, h, use_reentrant=False)


class Tripled(torch.autograd.Function):
    """A gradient that is not that of what was computed."""

    @staticmethod
    def forward(ctx, h):
        return h.clone()

    @staticmethod
    def backward(ctx, grad):
        return 3 * grad


def by_own_gradient(model, h):
    return Tripled.apply(h)


def by_generator(model, h):
    return h + torch.randn(h.shape, generator=model.draws, dtype=h.dtype)


DRAWS = np.random.default_rng(0)


class Shaken(nn.Linear):
    def __init__(self):
        super().__init__(6, 3, dtype=torch.float64)

    def forward(self, x):
        return super().forward(x) * DRAWS.normal()


def clamping(model, h):
    model.b.weight.data.clamp_(-0.2, 0.2)
    return h


def by_teacher(model, h):
    for taught, p in zip(model.part.parameters(), model.b.parameters(), strict=True):
        taught.data.mul_(0.9).add_(p.data, alpha=0.1)
    return h + model.part(h).mean()


def unfreezing(model, h):
    model.n += 1
    model.a.requires_grad_(model.n >= 3)
    return h


def frozen_first():
    model = Body(unfreezing)
    model.a.requires_grad_(False)
    return model


class Frozen(Body):
    """Its batch norm keeps its statistics, as when a trained model is trained further."""

    def __init__(self):
        super().__init__(part_of, part=nn.BatchNorm1d(5))

    def train(self, mode=True):
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.eval()
        return self


def part_of(model, h):
    return model.part(h)


class Headed(Body):
    def parameters(self, recurse=True):
        return self.b.parameters(recurse)


class Extra(Body):
    def get_extra_state(self):
        return {"n": self.n}

    def set_extra_state(self, state):
        self.n = state["n"]


class Waves(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 3, dtype=torch.complex128))

    def forward(self, x):
        return (x.to(torch.complex128) @ self.weight).abs()


class Hooked(Body):
    """Hooks that are methods of the module."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.a.register_forward_hook(self.scaled)
        self.b.weight.register_hook(self.pulled)

    def scaled(self, module, given, found):
        return found * self.scale

    def pulled(self, grad):
        return grad + 0.1 * self.b.weight.detach()


def tied():
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 3)).double()
    model[2].weight = model[0].weight
    return model


def cumulative():
    return nn.BatchNorm1d(5, momentum=None).double()


def clamp(model):
    for p in model.parameters():
        p.register_hook(lambda grad: grad.clamp(-0.01, 0.01))


def halve(p):
    p.grad.mul_(0.5)


def mask(model):
    keep = (torch.arange(30).view(5, 6) % 2).double()
    model[0].weight.data.mul_(keep)
    model[0].weight.register_hook(lambda grad: grad * keep)


def closure(model):
    w = model[0].weight
    w.register_hook(lambda grad: grad + 0.1 * w.detach())


def closure_of_forward(model):
    model[0].register_forward_hook(lambda module, given, found: found * model[2].bias.mean())


def prune_twice(model):
    prune.l1_unstructured(model[0], "weight", 0.5)
    prune.random_unstructured(model[2], "weight", 0.3)


MODELS = [
    Idiom("an MLP", mlp),
    Idiom("gradients clamped by hooks", changed(clamp)),
    Idiom("gradients masked by a hook", changed(mask)),
    Idiom(
        "a hook after accumulation",
        changed(lambda m: m[0].weight.register_post_accumulate_grad_hook(halve) and None),
    ),
    Idiom("hooks that are methods", Hooked),
    Idiom("a hook whose closure holds the parameter", changed(closure)),
    Idiom("a forward hook whose closure holds the model", changed(closure_of_forward)),
    Idiom(
        "a forward hook",
        changed(lambda m: m[0].register_forward_hook(lambda module, given, found: found * 2) and None),
    ),
    Idiom(
        "a full backward hook",
        changed(lambda m: m[2].register_full_backward_hook(lambda m, gi, go: (gi[0] * 0.5,)) and None),
    ),
    Idiom("`random` in `forward`", lambda: Body(by_random)),
    Idiom("`numpy.random` in `forward`", lambda: Body(by_numpy)),
    Idiom("`Tensor.normal_` in `forward`", lambda: Body(by_torch)),
    Idiom("draws that no first step shows", lambda: Body(rarely)),
    Idiom("Dropout", changed(lambda m: m.insert(1, nn.Dropout(0.4)) and None), counts=True),
    Idiom("BatchNorm", changed(lambda m: m.insert(1, nn.BatchNorm1d(5).double()) and None)),
    Idiom("a count in an attribute", lambda: Body(counting)),
    Idiom("a count in a buffer", lambda: Body(by_buffer, count=nn.Buffer(torch.zeros(())))),
    Idiom("tied weights", tied),
    Idiom("pruned by torch.nn.utils.prune", changed(prune_twice)),
    Idiom(
        "the old weight_norm",
        changed(lambda m: torch.nn.utils.weight_norm(m[0]) and None),
    ),
    Idiom("parametrizations.weight_norm", changed(lambda m: parametrizations.weight_norm(m[0]) and None)),
    Idiom("parametrizations.spectral_norm", changed(lambda m: parametrizations.spectral_norm(m[0]) and None)),
    Idiom("frozen parts", changed(lambda m: m[0].requires_grad_(False) and None)),
    Idiom("an embedded GRU", lambda: Body(by_gru, part=nn.GRU(5, 5, batch_first=True))),
    Idiom("a convolution", lambda: Body(by_conv, part=nn.Conv1d(1, 1, 3, padding=1))),
    Idiom("attention", lambda: Body(by_heads, part=nn.MultiheadAttention(5, 1, batch_first=True))),
    Idiom("checkpointing", lambda: Body(by_checkpoint)),
    Idiom("a gradient of one's own", lambda: Body(by_own_gradient)),
    Idiom("a torch.Generator of its own", lambda: Body(by_generator, draws=torch.Generator().manual_seed(3))),
    Idiom("draws from a generator of the module", Shaken),
    Idiom("weights clamped in `forward`", lambda: Body(clamping)),
    Idiom(
        "a teacher that follows in `forward`",
        lambda: Body(by_teacher, part=nn.Linear(5, 3).requires_grad_(False)),
    ),
    Idiom("parts unfrozen in `forward`", frozen_first),
    Idiom("BatchNorm frozen by `train`", Frozen),
    Idiom("BatchNorm with momentum=None", changed(lambda m: m.insert(1, cumulative()) and None)),
    Idiom("complex weights", Waves),
    Idiom("`parameters()` of its own", Headed),
    Idiom("an extra state", Extra),
    Idiom("lazy layers", lambda: nn.Sequential(nn.LazyLinear(3)).double()),
]
COMPILED = Idiom("`torch.compile`d", lambda: torch.compile(mlp(), backend="eager"))

# --- losses ---------------------------------------------------------------------------------------

WEIGHT = torch.tensor([1.0, 2.0, 7.0], dtype=torch.float64)


def by_torch_loss(name, loss):
    return Idiom(name, plain={"loss": loss}, told={"loss": loss})


def focal(outputs, y):
    each = F.cross_entropy(outputs, y, reduction="none")
    return (1 - torch.exp(-each)) ** 2 * each


def contrastive(outputs, y):
    near = outputs @ outputs.T
    return F.cross_entropy(near, torch.arange(len(y)))


def by_chance(outputs, y):
    return F.cross_entropy(outputs, y, reduction="none") * random.random()


def annealed():
    n = 0

    def loss(outputs, y):
        nonlocal n
        n += 1
        return F.cross_entropy(outputs, y, reduction="none") * n

    return loss


class Balanced(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Buffer(torch.ones((), dtype=torch.float64))

    def forward(self, outputs, y):
        rows = F.cross_entropy(outputs, y, reduction="none")
        self.mean.lerp_(rows.detach().mean(), 0.1)
        return rows / self.mean


def by_rows(name, loss):
    return Idiom(name, plain={"loss": lambda outputs, y: loss(outputs, y).mean()}, told={"loss": loss})


LOSSES = [
    Idiom("cross entropy", plain={"loss": F.cross_entropy}, told={"loss": "cross_entropy"}),
    by_torch_loss("class weights", nn.CrossEntropyLoss(weight=WEIGHT)),
    by_torch_loss("label smoothing", nn.CrossEntropyLoss(label_smoothing=0.1)),
    by_torch_loss("ignore_index", nn.CrossEntropyLoss(ignore_index=0)),
    by_torch_loss("all three", nn.CrossEntropyLoss(weight=WEIGHT, ignore_index=1, label_smoothing=0.2)),
    by_torch_loss("a sum", nn.CrossEntropyLoss(reduction="sum")),
    Idiom("one loss per row", plain={"loss": lambda o, y: focal(o, y).mean()}, told={"loss": focal}),
    by_rows("`random` in a loss", by_chance),
    by_rows("a count in a loss's closure", annealed()),
    by_rows("a running mean in a loss's buffer", Balanced()),
    by_torch_loss("a function that returns one number", lambda o, y: F.cross_entropy(o, y, weight=WEIGHT)),
    Idiom(
        "an objective that mixes rows",
        plain={"loss": contrastive},
        told={"objective": lambda model, batch: contrastive(model(batch[0]), batch[1])},
    ),
]

# --- loops ----------------------------------------------------------------------------------------


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def by_value(loss):
    def step(model, optimizer, x, y):
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()
        return value

    return step


def accumulating(loss, model, optimizer, x, y):
    """Two batches a step: what is counted is kept on the model, which each client has for itself."""
    model.n_batches = getattr(model, "n_batches", 0) + 1
    value = loss(model(x), y) / 2
    value.backward()
    if model.n_batches % 2 == 0:
        optimizer.step()
        optimizer.zero_grad()
    return value


def with_second(loss, model, optimizer, x, y):
    """A second optimiser, made by each client's first step."""
    if not hasattr(model, "second"):
        model.second = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer.zero_grad()
    value = loss(model(x), y)
    value.backward()
    optimizer.step()
    model.second.step()
    return value


def counting_steps(loss):
    n = 0

    def step(model, optimizer, x, y):
        nonlocal n
        n += 1
        return with_second(loss, model, optimizer, x / n, y)

    return step


def by_step(name, step):
    def told(loss):
        return lambda model, optimizer, x, y: step(loss, model, optimizer, x, y)

    return Idiom(name, plain={"step": step}, told={"step": told})


def restless(model):
    return torch.optim.SGD(model.parameters(), lr=2.5)


def without_gain(losses):
    """Has no epoch of the last two a lower mean than all before?"""
    means = [sum(epoch) / len(epoch) for epoch in losses]
    return len(means) > 2 and min(means[-2:]) >= min(means[:-2])


def groups(model):
    biases = [p for name, p in model.named_parameters() if name.endswith("bias")]
    others = [p for name, p in model.named_parameters() if not name.endswith("bias")]
    return torch.optim.SGD([{"params": others, "weight_decay": 0.1}, {"params": biases}], lr=0.1)


def clip_norm(model):
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)


def clip_value(model):
    nn.utils.clip_grad_value_(model.parameters(), 0.01)


LOOPS = [
    Idiom("SGD with momentum", plain={"optimizer": sgd}, told={"optimizer": SGD(0.1, momentum=0.9)}),
    Idiom(
        "Adam",
        plain={"optimizer": lambda m: torch.optim.Adam(m.parameters(), lr=0.01)},
        told={"optimizer": Adam(0.01)},
    ),
    Idiom("clip by norm", plain={"after_backward": clip_norm}, told={"clip": 0.1}),
    Idiom(
        "clip by value, in a step of one's own", plain={"after_backward": clip_value}, told={"step": by_value}
    ),
    Idiom(
        "a schedule",
        plain={"schedule": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5)},
        told={"schedule": StepDecay(every=2, gamma=0.5)},
    ),
    Idiom(
        "groups of parameters",
        plain={"optimizer": groups},
        told={"optimizer": ParameterGroups(SGD(0.1, weight_decay=0.1), {"*bias": {"weight_decay": 0.0}})},
    ),
    Idiom(
        "early stopping",
        plain={"optimizer": restless, "stop": without_gain, "epochs": 6},
        told={"optimizer": SGD(2.5), "stop": EarlyStop(patience=2), "epochs": 6},
    ),
    by_step("accumulation, in a step of one's own", accumulating),
    by_step("two optimisers, in a step of one's own", with_second),
    Idiom("a count in a step's closure", told={"step": counting_steps}),
    Idiom("two optimisers", plain={"optimizer": sgd}, told={"optimizer": [SGD(0.1), Adam(0.01)]}),
]


# --- outcomes -------------------------------------------------------------------------------------

SIZES = (11, 7)  # rows of the two clients: with a short batch in each epoch


@dataclass(frozen=True)
class Outcome:
    """How far two clients ended from the plain loop, as a share of the largest number of each tensor.

    distance  None if evenload refused to train them
    said      the refusal, or why clients were trained one by one; else ""
    """

    distance: float | None
    said: str = ""


def outcome(strategy, dataset=DATASETS[0], model=MODELS[0], loss=LOSSES[0], loop=LOOPS[0]):
    told = {"optimizer": SGD(0.1, momentum=0.9), "epochs": EPOCHS, **loss.told, **loop.told}
    by_row, makes = (loss.plain | loop.plain)["loss"], seeded_by(model)
    if dataset.build is Dicts:
        told["objective"] = of_dicts(by_row)
    if "step" in told:
        told["step"] = told["step"](by_row)
    try:
        recipe = Recipe(batch_size=BATCH, shuffle=False, **told)
        datasets = [dataset.build(n) for n in SIZES]
        run = train(makes, datasets, recipe, strategy=strategy, seed=SEED, on_error="return")
    except EvenloadError as error:
        return Outcome(None, sentence(error))
    failed = [result.error for result in run if result.status == "failed"]
    if failed:
        return Outcome(None, sentence(failed[0]))
    if model.counts:
        truths = train(makes, datasets, recipe, strategy="serial", seed=SEED).states
    else:
        truths = plain_states(dataset, model, loss, loop)
    return Outcome(max(map(distance, run.states, truths)), "; ".join(run.plan.reasons.values()))


@cache
def plain_states(dataset, model, loss, loop):
    """Each client's at the end of the plain loop, which knows of no strategy."""
    plain, states = {"optimizer": sgd, "epochs": EPOCHS, **loss.plain, **loop.plain}, []
    if dataset.build is Dicts:
        plain["loss"] = of_dicts(plain["loss"])
    for client, n in enumerate(SIZES):
        own, seeds = seeded_by(model)(), (client_seed(SEED, client, of="rows"), client_seed(SEED, client))
        train_plainly(own, dataset.build(n), batch_size=BATCH, seeds=seeds, **plain)
        states.append(own.state_dict())
    return states


def of_dicts(by_row):
    return lambda model, b: by_row(model(b["x"]), b["y"])


def seeded_by(model):
    def make():
        torch.default_generator.manual_seed(0)
        return model.build()

    return make


def distance(state, truth):
    assert list(state) == list(truth)
    pairs = [(real(state[name]), real(t)) for name, t in truth.items()]
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)) for a, b in pairs)


def real(t):
    return (torch.view_as_real(t) if t.is_complex() else t).double()


def sentence(error):
    return str(getattr(error, "message", error)).split("\n")[0]


KINDS = {"dataset": DATASETS, "model": MODELS, "loss": LOSSES, "loop": LOOPS}
HEAD = """# Idioms of torch, held against plain torch

Two clients of unlike size are trained in float64, and each is held against a loop that a tutorial
would write: a `DataLoader`, an optimiser of `torch.optim`, `backward`.

- *equal*: every number of the state is within 1e-12 of that loop's, as a share of the largest in its
  tensor; with the same draws where draws are seeded (`client_seed`).
- *by itself*: the same, clients one after the other, for the reason that `plan.explain()` gives, too.
- *refused*: an error that says what to do instead.

Combinations of one row of each table are tried at random by `tests/clients/test_zoo.py`. The page is
made by `PYTHONPATH=tests python tests/clients/zoo.py`.
"""


def cell(found):
    if found.distance is None:
        return f"refused: {found.said}"
    said = "vmap knows no rule for it" if "aten::" in found.said else found.said
    return f"equal, by itself: {said}" if said else "equal"


def page():
    """The table of the zoo, and idioms that end elsewhere than the plain loop."""
    lines, unequal = [HEAD], []
    for kind, idioms in KINDS.items():
        lines.append(f"| {kind} | serial | fused |\n|---|---|---|")
        for idiom in idioms:
            found = [outcome(strategy, **{kind: idiom}) for strategy in ("serial", "fused:2")]
            unequal += [
                (idiom.name, f) for f in found if f.distance is not None and not f.distance <= ALLOWED
            ]
            name = idiom.name + " (its draws are counted, not torch's: fused against serial)" * idiom.counts
            lines.append(" | ".join([f"| {name}", *map(cell, found)]) + " |")
        lines.append("")
    return "\n".join(lines), unequal


if __name__ == "__main__":
    PAGE.write_text(page()[0])
