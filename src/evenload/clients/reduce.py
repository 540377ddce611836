"""Aggregation on the fly: what is needed of a client's state is taken when it ends, and the rest let go.

    reduce="mean"    mean of the states, weighted by rows
    a Reducer        anything with ``take(results) -> results to keep`` and ``value()``

A stacked chunk is reduced by one product per tensor, without slicing clients out of it; in float32 at least.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from evenload.errors import ConfigError

from .result import ClientResult, Row

__all__ = ["Mean", "Reducer", "make_reducer"]


class Reducer(Protocol):
    def take(self, results: Sequence[ClientResult]) -> Iterable[ClientResult]:
        """Clients that ended together; returns what is kept of them."""
        ...

    def value(self) -> Any: ...


class Mean:
    """Mean of the usable clients' states, weighted by their rows (or equally). Sums are kept in float64.

    keeps_states  leave the states in the results
    """

    def __init__(self, *, by_rows: bool = True, keeps_states: bool = False):
        self._by_rows, self._keeps_states = by_rows, keeps_states
        self._sums: dict[str, Tensor] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        self._weight = 0.0

    def take(self, results: Sequence[ClientResult]) -> Iterable[ClientResult]:
        usable = [r for r in results if r.is_usable]
        weights = [float(r.n_rows) if self._by_rows else 1.0 for r in usable]
        if usable:
            self._add(usable, weights)
            self._weight += sum(weights)
        return results if self._keeps_states else [r.without_state() for r in results]

    def value(self) -> dict[str, Tensor]:
        """Raises ConfigError if there was no usable client."""
        if not self._weight:
            raise ConfigError("no client has ended well: there is nothing to average")
        return {name: _as(total / self._weight, self._dtypes[name]) for name, total in self._sums.items()}

    def _add(self, usable: Sequence[ClientResult], weights: list[float]) -> None:
        for name, part in _weighted_sums([r.state for r in usable], weights).items():
            if name not in self._sums:
                self._sums[name] = torch.zeros(part.shape, dtype=torch.float64)
                self._dtypes[name] = usable[0].state[name].dtype
            self._sums[name] += part.to("cpu", torch.float64)


def _weighted_sums(states: Sequence[Mapping[str, Tensor]], weights: list[float]) -> dict[str, Tensor]:
    first = states[0]
    if isinstance(first, Row) and all(isinstance(s, Row) and s.stack is first.stack for s in states):
        return _stacked_sums(first, [s.row for s in states], weights)  # pyright: ignore
    sums = {name: torch.zeros(first[name].shape, dtype=torch.float64) for name in first}
    for state, weight in zip(states, weights, strict=True):
        for name, total in sums.items():
            total.add_(state[name].to("cpu", torch.float64), alpha=weight)
    return sums


def _stacked_sums(first: Row, rows: list[int], weights: list[float]) -> dict[str, Tensor]:
    n = next(iter(first.stack.values())).shape[0]
    w = np.zeros(n)
    w[rows] = weights
    is_all = len(rows) == n
    sums = {}
    alongs: dict[torch.dtype, Tensor] = {}
    for name in first:
        t = first.stack[first.names[name]]
        t = t if is_all else t[rows]
        if t.dtype not in (torch.float32, torch.float64):  # in bfloat16 257 rows would count as 256
            t = t.float() if t.is_floating_point() else t.double()
        along = alongs.get(t.dtype)
        if along is None:
            along = alongs[t.dtype] = torch.from_numpy(w if is_all else w[rows]).to(t.device, t.dtype)
        sums[name] = torch.mv(t.reshape(len(along), t[0].numel()).t(), along).view(t.shape[1:])
    return sums


def make_reducer(reduce: str | Reducer | None) -> Reducer | None:
    """Raises ConfigError for a name that is not known."""
    if reduce is None or (hasattr(reduce, "take") and hasattr(reduce, "value")):
        return reduce  # pyright: ignore[reportReturnType]
    if reduce == "mean":
        return Mean()
    raise ConfigError(f"reduce={reduce!r}", hint="use 'mean', or an object with take(results) and value()")


def _as(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value.to(dtype) if dtype.is_floating_point else value.round().to(dtype)
