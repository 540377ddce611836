"""Does padding a batch change what its real rows give? Shown by steps with other rows as padding.

A fused step has batches of one size: short ones are padded, and padding rows weigh nothing in the loss. That
is serial training only if no row's loss depends on other rows (means over the batch, contrastive losses), on
their number, or on where a row lies in a tensor.
"""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from evenload.clients.step.dropout import KEY, KeyedDropout, keyed_layers
from evenload.clients.step.functions import ReplacedFunctions
from evenload.clients.step.module_state import ModuleState
from evenload.clients.step.norm import ROW_WEIGHT, MaskedBatchNorm, with_masked_norm
from evenload.clients.step.objective import BatchLoss
from evenload.clients.values.data import Batch, dtype_of, leaves_of, map_batch
from evenload.clients.values.losses import IGNORED
from evenload.clients.values.recipe import Recipe
from evenload.clients.values.task import ClientTask, State
from evenload.errors import ConfigError

SCALES = (1.0, 1e3, 30.0, 3.0)  # of noise; two that give finite numbers are needed
SHIFT = 0.05  # of parameters: zeros at the start would hide what is multiplied by them
ALLOWED = {torch.float64: 1e-9}  # share of a tensor's largest number that rounding may account for
ALLOWED_ELSE, ALLOWED_AUTOCAST = 5e-3, 0.1
SMALL = 1e-2  # of the largest gradient: smaller ones are measured by this
KEYS = 4  # steps whose random numbers are tried, if an augmentation draws some


@dataclass(frozen=True, slots=True)
class PaddingVerdict:
    """Why batches of some number of rows cannot be padded; both None if they can.

    mixes  why padded batches differ from others
    fails  what serial training says of such a batch: its clients fail, others need not
    """

    mixes: str | None = None
    fails: str | None = None


class PaddingProbe:
    """Steps of a private copy of ``model`` from ``start``, with padding and without.

    x, y  examples of several clients: they say which numbers occur
    """

    def __init__(self, model: nn.Module, recipe: Recipe, start: State, x: Batch, y: Tensor):
        self._model, self._recipe, self._start = model, recipe, start
        self._x, self._y = x, _without_ignored(y)
        self._generator = torch.Generator().manual_seed(0)
        self._pairs: dict[torch.dtype | None, tuple[_Stepper, _Stepper]] = {}
        self._verdicts: dict[int, PaddingVerdict] = {}  # number of rows -> what it gave

    def why_not(self, short: Mapping[int, ClientTask]) -> str | None:
        """Why batches of these numbers of rows cannot be padded, or None; ``short``: a task with each.

        Every number of rows that occurs is probed, once: a model may act on one (``if x.shape[0] == 7``), and
        what is shown for other numbers says nothing of it.
        """
        for n in sorted(short.keys() - self._verdicts.keys()):
            batches = short[n].batches
            step = int(batches.counts.argmin())
            x, y = short[n].rows.at(batches.rows[step, : batches.counts[step]])
            self._verdicts[n] = self._verdict(x, y, int(batches.draws[step]), batches.rows.shape[1])
            if self._verdicts[n].mixes:  # one is enough
                break
        return next((v.mixes for v in self._verdicts.values() if v.mixes), None)

    def failing(self) -> dict[int, str]:
        """Numbers of rows that fail in serial training, and how."""
        return {n: v.fails for n, v in self._verdicts.items() if v.fails}

    def _verdict(self, x: Batch, y: Tensor, draw: int, n_padded: int) -> PaddingVerdict:
        """May a batch ``x``, ``y`` of real rows be padded to ``n_padded`` rows? ``draw``: the step's key."""
        what = f"a batch of {len(y)} row{'s' * (len(y) != 1)}"
        keys = [draw + i for i in range(KEYS if self._recipe.augment else 1)]
        x = map_batch(self._finite, x, self._x)
        y, failure = _without_ignored(y), None
        with torch.random.fork_rng(devices=[]):
            for dtype in (torch.float64, None):
                try:
                    reasons = [self._compare(dtype, x, y, key, n_padded) for key in keys]
                except Exception as error:  # not in float64, or not at all
                    failure = f"{what} fails: {type(error).__name__}: {error}".splitlines()[0]
                    continue
                reason = next(filter(None, reasons), None)
                return PaddingVerdict(reason and f"{what} ends away from serial if it is padded: {reason}")
        return PaddingVerdict(fails=failure)

    def _compare(self, dtype: torch.dtype | None, x: Batch, y: Tensor, key: int, n: int) -> str | None:
        """Why padded steps differ from the plain one, or None. Raises what the plain one raises."""
        plain, padded = self._steppers(dtype)
        for shift in (SHIFT, 0.0):
            truth = plain.step(x, y, key, shift)
            if truth.is_finite():
                break
        else:
            return "its loss or gradient is not finite"
        if (name := plain.state.changed()) is not None:
            return f"{name} changes in training, which clients in one step would share"
        found: list[_Step] = []
        trouble = "no padding was found that gives finite numbers"
        for more_x, more_y in self._paddings(n - len(y)):
            try:
                both_x, both_y = map_batch(lambda *t: torch.cat(t), x, more_x), torch.cat([y, more_y])
                step = padded.step(both_x, both_y, key, shift, len(y))
            except Exception as error:
                trouble = f"{type(error).__name__}: {error}".splitlines()[0]
                continue
            found += [step] if step.is_finite() else []
            if len(found) == 2:
                break
        else:
            return trouble
        if not found[0].equals(found[1]):
            return "the model or the loss mixes rows of a batch"
        otherwise = ALLOWED_AUTOCAST if self._recipe.precision else ALLOWED_ELSE
        allowed = ALLOWED.get(padded.dtype, otherwise)
        if found[0].distance(truth) > allowed:
            return "the model or the loss depends on the number of rows, or on their places in a tensor"
        return None

    def _steppers(self, dtype: torch.dtype | None) -> "tuple[_Stepper, _Stepper]":
        if dtype not in self._pairs:
            plain = _Stepper(copy.deepcopy(self._model).train(), self._recipe, self._start, dtype)
            masked = with_masked_norm(copy.deepcopy(self._model).train())
            self._pairs[dtype] = plain, _Stepper(masked, self._recipe, self._start, dtype)
        return self._pairs[dtype]

    def _paddings(self, n: int) -> Iterator[tuple[Batch, Tensor]]:
        """Yield ``n`` rows and targets of many kinds: noise, numbers between those that occur, other rows."""

        def noise(like: Tensor, scale: float | None = None) -> Tensor:
            is_normal = scale is not None and like.is_floating_point()
            return self._noise(like, (n, *like.shape[1:]), scale if is_normal else None)

        scales = SCALES if any(t.is_floating_point() for t in leaves_of(self._x)) else ()
        for scale in (*scales, None, None):
            yield map_batch(lambda t, scale=scale: noise(t, scale), self._x), noise(self._y)
        for _ in range(4):
            at = torch.randint(len(self._y), (n,), generator=self._generator)
            yield map_batch(lambda t, at=at: t[at], self._x), noise(self._y)

    def _finite(self, t: Tensor, like: Tensor) -> Tensor:
        return torch.where(t.isfinite(), t, self._noise(like, t.shape, 1.0)) if t.is_floating_point() else t

    def _noise(self, like: Tensor, shape: tuple[int, ...] | torch.Size, scale: float | None) -> Tensor:
        """Normal numbers, or, with no scale, uniform ones between the least and the largest in a column."""
        if scale is not None:
            return scale * torch.randn(shape, generator=self._generator, dtype=torch.float64).to(like.dtype)
        if like.dtype == torch.bool:
            return torch.rand(shape, generator=self._generator) < 0.5
        if not like[0].numel():
            return like.new_zeros(shape)
        known = like.double()
        low, high = (torch.nan_to_num(t) for t in (known.amin(0), known.amax(0)))
        drawn = torch.rand(shape, generator=self._generator, dtype=torch.float64)
        if like.is_floating_point():
            return (low + (high - low) * drawn).to(like.dtype)
        if bool((low == high).all()):  # one number in every row would not tell rows apart
            low, high = torch.where(low > 0, low - 1, low), torch.where(low > 0, high, high + 1)
        return (low + ((high - low + 1) * drawn).floor()).to(like.dtype)


@dataclass(frozen=True, slots=True)
class _Step:
    """Losses of the real rows, if there is one for each; the mean, ``n_grads`` gradients and buffers."""

    losses: Tensor | None
    tensors: list[Tensor]
    n_grads: int

    def is_finite(self) -> bool:
        return all(bool(t.isfinite().all()) for t in self.tensors)

    def equals(self, other: "_Step") -> bool:
        """Bit for bit: padding rows weigh nothing, and shapes are the same."""
        pairs = [(self.losses, other.losses), *zip(self.tensors, other.tensors, strict=True)]
        return all(a is None or b is None or torch.equal(a, b) for a, b in pairs)

    def distance(self, other: "_Step") -> float:
        """The largest difference in a tensor as a share of its largest number; the most of all tensors."""
        if len(self.tensors) != len(other.tensors):
            return float("inf")
        worst, grads = 0.0, range(1, 1 + self.n_grads)
        tops = [float(t.abs().max()) if t.numel() else 0.0 for t in other.tensors]
        least = SMALL * max((tops[i] for i in grads), default=0.0)
        for i, (a, b) in enumerate(zip(self.tensors, other.tensors, strict=True)):
            if a.shape != b.shape:
                return float("inf")
            if a.numel():
                size = max(tops[i], least if i in grads else 0.0, 1e-30)
                worst = max(worst, float((a - b).abs().max()) / size)
        return worst


def _without_ignored(y: Tensor) -> Tensor:
    """Labels with 0 for those that are ignored: which rows weigh nothing is known without a model."""
    return y if y.is_floating_point() else y.masked_fill(y == IGNORED, 0)


class _PlacedDropout(KeyedDropout):
    """A dropout that multiplies by its uniform numbers: two places never have the same by chance."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (0.5 + self.uniform(x).to(x.dtype)) if self.training and self.p else x


class _PlacedFunctions(ReplacedFunctions):
    """Replaced functions whose dropout multiplies by its uniform numbers, too."""

    def kept(self, x: Tensor, p: float, by_channel: bool) -> Tensor:
        shape = [*x.shape[:2], *[1] * (x.dim() - 2)] if by_channel else x.shape
        return 0.5 + self.uniform(*shape).to(x.dtype)


class _Stepper:
    """Steps of one module, which is in training, each from the same state."""

    def __init__(self, module: nn.Module, recipe: Recipe, start: State, dtype: torch.dtype | None):
        module.load_state_dict(start)
        self._module = module if dtype is None else module.to(dtype)
        self._loss, self._is_cast = BatchLoss(recipe, _PlacedFunctions()), dtype is not None
        self._layers = list(keyed_layers(module).values())
        for layer in self._layers:
            layer.__class__ = _PlacedDropout
        self._norms = [m for m in module.modules() if isinstance(m, MaskedBatchNorm)]
        self._params = [p for p in module.parameters() if p.requires_grad]
        self._buffers = [(m, name) for m in module.modules() for name in m._buffers]
        self._values = [p.detach().clone() for p in self._params]
        generator = torch.Generator().manual_seed(1)
        self._shifts = [torch.randn(p.shape, generator=generator).to(p) for p in self._params]
        self.dtype = dtype_of(self._params)
        self.state = ModuleState(module)

    def step(self, x: Batch, y: Tensor, key: int, shift: float, n_real: int | None = None) -> _Step:
        """A step from the start, its parameters shifted; only the first ``n_real`` rows count, if given."""
        self.state.restore()
        with torch.no_grad():
            for p, value, noise in zip(self._params, self._values, self._shifts, strict=True):
                p.copy_(value + shift * noise * (1 + value.abs()))
        if self._is_cast:
            x = map_batch(lambda t: t.to(self.dtype) if t.is_floating_point() else t, x)
            y = y.to(self.dtype) if y.is_floating_point() else y
        for layer in self._layers:
            layer.n_calls = 0
            getattr(layer, KEY).fill_(key)
        weights = None if n_real is None else (torch.arange(len(y)) < n_real).to(self.dtype) / n_real
        for norm in self._norms:
            setattr(norm, ROW_WEIGHT, weights)
        if weights is None:
            losses, value = None, self._loss(self._module, x, y, torch.tensor(key))[0]
        else:
            rows = self._loss.rows(self._module, x, y, torch.tensor(key))[0]
            if not rows.dim():
                raise ConfigError("the objective returns one number for a batch, not one for each row")
            losses, value = rows[:n_real].detach(), self._loss.total(rows, y, weights)
        grads = torch.autograd.grad(value, self._params, allow_unused=True)
        kept = [(m, name) for m, name in self._buffers if name not in (KEY, ROW_WEIGHT)]
        buffers = [m._buffers[name] for m, name in kept]
        tensors = [*grads, *(b.detach().double() for b in buffers if b is not None)]
        found = [value.detach(), *(torch.zeros(1) if t is None else t.clone() for t in tensors)]
        return _Step(losses, found, len(grads))
