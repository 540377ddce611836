"""A worker in another process, and how clients travel there and back.

Tensors travel as arrays: those go out of band, without a copy.
"""

import dataclasses
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evenload.clients.fused.engine import longest_first
from evenload.clients.spread.client_worker import ClientWorker
from evenload.clients.step.model_traits import ModelTraits
from evenload.clients.step.module_state import hooks_of, set_hooks
from evenload.clients.values.data import Batch, Rows, leaves_of
from evenload.clients.values.recipe import Recipe
from evenload.clients.values.result import ClientResult
from evenload.clients.values.strategy import Strategy
from evenload.clients.values.task import ClientTask
from evenload.devices import CurrentDevice
from evenload.executor.task.prepare import pickle_callable

HOOKS = "_hooks_on_gradients"  # an attribute of a model on its way
STATES = ("start", "anchor", "correction")  # fields of a task that hold tensors by name


class RemoteClientWorker:
    """A client worker in another process, called with a group of tasks as ``sent_task`` makes them."""

    def __init__(
        self,
        device: CurrentDevice,
        *,
        model: "SentModel",
        strategy: Strategy,
        traits: ModelTraits | None,
        threads: int,
    ):
        torch.set_num_threads(threads)
        self._strategy, self._traits = strategy, traits
        self._functions: dict[tuple[bytes, ...], Any] = {}
        self._worker = ClientWorker(model.model, device.torch)

    def __call__(self, sent: Sequence[tuple]) -> tuple[list[ClientResult], Exception | None]:
        """The clients that ended, and the exception that kept the others from it, if any."""
        tasks = [_task(self._recipe(*recipe), *fields) for recipe, *fields in sent]
        ended: list[ClientResult] = []
        try:
            for batch in self._worker.train_queue(self._strategy, self._traits, tasks, longest_first(tasks)):
                ended += map(_sent_back, batch)
        except Exception as error:
            if not ended:
                raise
            return ended, RuntimeError(f"{type(error).__name__}: {error}")  # that can always be sent
        return ended, None

    def _recipe(self, plain: Recipe, own: Mapping[str, tuple[bytes, ...]]) -> Recipe:
        return (
            dataclasses.replace(plain, **{name: self._function(*own[name]) for name in own}) if own else plain
        )

    def _function(self, body: bytes, *buffers: bytes) -> Any:
        key = (body, *buffers)
        if key not in self._functions:
            self._functions[key] = pickle.loads(body, buffers=[bytearray(b) for b in buffers])
        return self._functions[key]


class SentModel:
    """A model pickled once: by value if a worker process cannot import its module."""

    def __init__(self, model: nn.Module, pickled: tuple[bytes, list] | None = None):
        self.model = model
        self._pickled = pickled or _pickled(model)

    def __reduce__(self) -> Any:
        body, buffers = self._pickled
        return _arrived, (body, [pickle.PickleBuffer(b) for b in buffers])


def _pickled(model: nn.Module) -> tuple[bytes, list]:
    """The model with the hooks on its parameters, which pickle leaves out, among its attributes."""
    hooks = hooks_of(model)
    if not hooks:
        return pickle_callable(model)
    try:
        model.__dict__[HOOKS] = hooks
        return pickle_callable(model)
    finally:
        del model.__dict__[HOOKS]


def _arrived(body: bytes, buffers: list) -> SentModel:
    held = [bytearray(buffer) for buffer in buffers]  # tensors of the model write into them
    model = pickle.loads(body, buffers=held)
    set_hooks(model, model.__dict__.pop(HOOKS, []))
    return SentModel(model, (body, held))


SentRecipe = tuple[Recipe, dict[str, tuple[bytes, ...]]]


def _array(t: Tensor) -> "np.ndarray | tuple[np.ndarray]":
    """A bare array, or in brackets the bits of numbers that numpy has no type for (bfloat16)."""
    t = t.detach().cpu().contiguous()
    return (t.view(torch.int16).numpy(),) if t.dtype == torch.bfloat16 else t.numpy()


def _tensor(array: "np.ndarray | tuple[np.ndarray]") -> Tensor:
    if isinstance(array, tuple):
        return torch.from_numpy(_writable(array[0])).view(torch.bfloat16)
    return torch.from_numpy(_writable(array))


def _arrays(state: Mapping[str, Tensor] | None) -> dict[str, Any] | None:
    return None if state is None else {name: _array(state[name]) for name in state}


def _tensors(arrays: Mapping[str, Any] | None) -> dict[str, Tensor] | None:
    return None if arrays is None else {name: _tensor(a) for name, a in arrays.items()}


def _writable(array: np.ndarray) -> np.ndarray:
    return array if array.flags.writeable else array.copy()


def sent_recipe(recipe: Recipe) -> "SentRecipe":
    """The recipe without the caller's own functions, and the bytes of these, which a worker loads once.

    Otherwise a function would be another one for each group of clients, and each group need its own engine.
    """
    own: dict[str, tuple[bytes, ...]] = {}
    for name in ("loss", "objective", "augment", "step", "optimizer", "schedule"):
        if callable(fn := getattr(recipe, name)) or getattr(fn, "has_functions", False):
            body, buffers = pickle_callable(fn)
            own[name] = (body, *map(bytes, buffers))
    plain = Recipe()
    return (dataclasses.replace(recipe, **{n: getattr(plain, n) for n in own}) if own else recipe), own


def sent_task(task: ClientTask, recipe: SentRecipe) -> tuple:
    rows = task.rows.own()
    names = tuple(rows.x) if isinstance(rows.x, dict) else isinstance(rows.x, tuple)
    arrays = [_array(t) for t in (*leaves_of(rows.x), rows.y)]
    states: Any = {name: _arrays(getattr(task, name)) for name in STATES}
    left_out: Any = {"recipe": None, "rows": None}
    return recipe, names, arrays, rows.has_ignored, dataclasses.replace(task, **left_out, **states)


def _task(recipe: Recipe, names: Any, arrays: list[Any], has_ignored: bool, sent: ClientTask) -> ClientTask:
    *x, y = map(_tensor, arrays)
    inputs: Batch = (
        dict(zip(names, x, strict=True)) if isinstance(names, tuple) else tuple(x) if names else x[0]
    )
    states: Any = {name: _tensors(getattr(sent, name)) for name in STATES}
    rows = Rows(inputs, y, has_ignored=has_ignored)
    return dataclasses.replace(sent, recipe=recipe, rows=rows, **states)


def _sent_back(result: ClientResult) -> ClientResult:
    state: Any = _arrays(result.state)
    return dataclasses.replace(result, state=state, metrics=dict(result.metrics))


def received(sent: ClientResult) -> ClientResult:
    """The result that a worker sent back, with tensors for its arrays."""
    state: Any = _tensors(sent.state)
    return dataclasses.replace(sent, state=state)
