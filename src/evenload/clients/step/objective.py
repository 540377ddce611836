"""The loss of one client's batch as one number, from what a recipe says: augmentation, precision, loss."""

import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from evenload.clients.step.dropout import uniform_of
from evenload.clients.step.functions import ReplacedFunctions
from evenload.clients.values.data import Batch, batch_of, leaves_of
from evenload.clients.values.losses import loss_of, mean_loss_of, shares_of
from evenload.clients.values.recipe import CrossEntropy, Recipe
from evenload.errors import ConfigError, quoted

OWN = 1 << 40  # keeps these draws apart from those of dropout


class Draws:
    """The random numbers of one client's batch in one step, for ``Recipe.augment``.

    They are counted, not drawn: each follows from the seed, the client, the round, the step and its place, so
    they do not depend on strategy, chunk, device or neighbours.
    Numbers of padding rows and of real ones do not depend on one another if the first axis is the rows.
    """

    def __init__(self, key: Tensor):
        self._key, self._n_calls = key, 0

    def uniform(self, *shape: int) -> Tensor:
        """float32 [*shape] in [0, 1), other numbers in every call."""
        numbers = uniform_of(self._key, OWN + self._n_calls, shape)
        self._n_calls += 1
        # Cut to the bits that float32 has: rounding would give 1.
        return ((numbers * 2.0**24).floor() * 2.0**-24).to(torch.float32)

    def coin(self, p: float, *shape: int) -> Tensor:
        """bool [*shape], each true with probability ``p``."""
        return self.uniform(*shape) < p


def augmented(recipe: Recipe, x: Batch, key: Tensor) -> Batch:
    """One client's rows ``x`` [rows, ...], augmented by the recipe; ``key`` int64 scalar of the step."""
    return x if recipe.augment is None else recipe.augment(x, Draws(key))


def precision_of(recipe: Recipe, device: str) -> AbstractContextManager:
    """A context in which products have the recipe's precision; parameters and updates stay as they are."""
    if recipe.precision is None:
        return nullcontext()
    kind = torch.device(device).type
    lower = torch.autocast(kind, dtype=torch.bfloat16)
    return lower if kind != "cpu" or has_bfloat16_lstm() else Both(lower, _PlainLSTM())


class Both:
    """Two contexts as one."""

    __slots__ = ("_a", "_b")

    def __init__(self, a: Any, b: Any):
        self._a, self._b = a, b

    def __enter__(self) -> None:
        self._a.__enter__()
        self._b.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._b.__exit__(*error)
        self._a.__exit__(*error)


@functools.cache
def has_bfloat16_lstm() -> bool:
    """Whether torch's own library can compute an LSTM in bfloat16 here, found by trying.

    oneDNN has none for processors without AVX-512: a model with one then raises under autocast.
    """
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16), torch.random.fork_rng(devices=[]):
        try:
            nn.LSTM(1, 1)(torch.zeros(1, 1, 1))
        except RuntimeError:
            return False
    return True


_SWITCH = threading.Lock()  # of torch's library, which is on or off for all threads


class _PlainLSTM(TorchFunctionMode):
    """A mode in which an LSTM is computed by torch's plain kernels, and all else by its library's."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.lstm:
            return func(*args, **(kwargs or {}))
        library = torch.backends.mkldnn
        with _SWITCH:  # two threads would each take the other's "off" for what it was
            was_enabled, library.enabled = library.enabled, False  # pyrefly: ignore
            try:
                return func(*args, **(kwargs or {}))
            finally:
                library.enabled = was_enabled


class BatchLoss:
    """The loss of a batch by one recipe, in one number; not for two threads at once.

    functions  torch's functions that are replaced meanwhile, or None
    """

    def __init__(self, recipe: Recipe, functions: ReplacedFunctions | None = None):
        self._recipe, self._functions = recipe, functions
        has_own = recipe.objective is not None
        self._per_row = None if has_own else loss_of(recipe)
        self._mean = None if has_own else mean_loss_of(recipe)
        named = recipe.loss if isinstance(recipe.loss, CrossEntropy) and not has_own else None
        self._is_sum = named is not None and named.reduction == "sum"
        self.shares = shares_of(named) if named is not None else None

    def __call__(
        self, model: Callable[..., Any], x: Batch, y: Tensor, key: Tensor, w: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """The mean over rows, or their sum weighted by ``w`` [rows]; and the model's outputs, if known."""
        if w is None and self._mean is not None:
            with self._inside(x, key):
                outputs = self._outputs_of(model, augmented(self._recipe, x, key))
                return self._mean(outputs, y), outputs
        rows, outputs = self.rows(model, x, y, key)
        if not rows.dim():  # one number for the batch: whoever pads it is refused before
            return rows, outputs
        return (rows.mean() if w is None else self.total(rows, y, w)), outputs

    def total(self, rows: Tensor, y: Tensor, w: Tensor) -> Tensor:
        """The loss of a batch, or of each of several [...], from that of each row [..., rows].

        w  of that shape: 1/n for the n real rows, 0 for padding
        """
        if self._is_sum:
            return (rows * (w > 0)).sum(-1)
        if self.shares is None:
            return (rows * w).sum(-1)
        shares = self.shares(y.flatten(0, w.dim() - 1)).view_as(w).to(rows.dtype)
        return (rows * w).sum(-1) / (shares * w).sum(-1)

    @property
    def is_named(self) -> bool:
        """Is it one of our losses, which see a row alone? Rows of many clients can then be given at once."""
        return isinstance(self._recipe.loss, str | CrossEntropy) and self._per_row is not None

    def outputs(self, model: Callable[..., Any], x: Batch, key: Tensor) -> Any:
        """The model's outputs for one client's rows, as ``rows`` has them."""
        with self._inside(x, key):
            return self._outputs_of(model, augmented(self._recipe, x, key))

    def of_outputs(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of each row [rows], from outputs that ``outputs`` gave; for a named loss."""
        assert self._per_row is not None
        with precision_of(self._recipe, y.device.type):
            return self._per_row(outputs, y)

    def rows(self, model: Callable[..., Any], x: Batch, y: Tensor, key: Tensor) -> tuple[Tensor, Any]:
        """A loss for each row (or, of a recipe's own objective, one for all), and the model's outputs."""
        with self._inside(x, key):
            inputs = augmented(self._recipe, x, key)
            if self._per_row is None:
                return _checked(self._recipe.objective(model, batch_of(inputs, y)), len(y)), None  # pyrefly: ignore
            outputs = self._outputs_of(model, inputs)
            return self._per_row(outputs, y), outputs

    def _outputs_of(self, model: Callable[..., Any], inputs: Batch) -> Any:
        outputs = outputs_of(model, inputs)
        if self.is_named and not isinstance(outputs, Tensor):
            kind, loss = type(outputs).__name__, quoted(self._recipe.loss)
            raise ConfigError(
                f"the model returned a {kind}, not a tensor for loss={loss}",
                hint="give loss=fn(outputs, targets) with a loss per row, or objective=fn(model, batch)",
            )
        return outputs

    def _inside(self, x: Batch, key: Tensor) -> "Both":
        functions = nullcontext() if self._functions is None else self._functions.begin(key)
        return Both(precision_of(self._recipe, leaves_of(x)[0].device.type), functions)


def outputs_of(model: Callable[..., Any], x: Batch) -> Any:
    """The model's outputs: a dict of tensors are its keywords, a tuple its arguments."""
    found = model(**x) if isinstance(x, dict) else model(*x) if isinstance(x, tuple) else model(x)
    return found if isinstance(found, Tensor) else getattr(found, "logits", found)


def draws_numbers(model: nn.Module, recipe: Recipe, x: Batch, y: Tensor) -> bool:
    """Does a step of ``model`` call a function whose random numbers can be counted? ``model`` is changed.

    Raises whatever the model raises.
    """
    functions = ReplacedFunctions()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        BatchLoss(recipe, functions).rows(model, x, y, torch.zeros((), dtype=torch.int64))
    return functions.drew


def _checked(found: Any, n_rows: int) -> Tensor:
    if not isinstance(found, Tensor):
        found = getattr(found, "loss", found)
    if not isinstance(found, Tensor) or (found.dim() and tuple(found.shape) != (n_rows,)):
        what = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise ConfigError(
            f"the objective returned {what} for {n_rows} rows",
            hint="return one loss per row, or one number for the batch",
        )
    return found
