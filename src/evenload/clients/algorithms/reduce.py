"""Aggregation as clients end: what is needed of a client's state is added up, and the rest freed.

    reduce="mean"    mean of the states, weighted by rows
    a Reducer        anything with ``take(results) -> results to keep`` and ``value()``

A stacked chunk is reduced by one product per tensor, without slicing clients out of it; in float32 at least.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from evenload._exact_sums import MOST_TERMS, ExactSums
from evenload.clients.values.result import ClientResult, StateRow
from evenload.errors import ConfigError, quoted

MOST_EXACT = 4 * MOST_TERMS  # clients of an exact mean
UNIT = 2.0**-16  # that weighted states are multiplied by: up to 2^30 they are added in steps of 2^-48


class Reducer(Protocol):
    """An aggregation of clients as they end."""

    def take(self, results: Sequence[ClientResult]) -> Iterable[ClientResult]:
        """Add clients that ended together; returns what is kept of them."""
        ...

    def value(self) -> Any: ...


class Mean:
    """The mean of the usable clients' states, weighted by their rows (or equally). Sums are kept in float64.

    keeps_states  leave the states in the results
    exact         the same bits in whatever order clients end, of up to 32768: as sums of whole numbers
    """

    def __init__(self, *, by_rows: bool = True, keeps_states: bool = False, exact: bool = False):
        self._by_rows, self._keeps_states, self._is_exact = by_rows, keeps_states, exact
        self._exact: ExactSums | None = None
        self._n_added = 0
        self._sums: Tensor | None = None  # all tensors' numbers in a row
        self._like: list[tuple[str, torch.Size, torch.dtype]] = []
        self._weight = 0.0

    def exactly(self) -> "Mean":
        """Return a mean of the same kind that is exact."""
        return Mean(by_rows=self._by_rows, keeps_states=self._keeps_states, exact=True)

    def take(self, results: Sequence[ClientResult]) -> Iterable[ClientResult]:
        usable = [r for r in results if r.is_usable]
        weights = [float(r.n_rows) if self._by_rows else 1.0 for r in usable]
        if usable:
            self._add([r.state for r in usable], weights)
            self._weight += sum(weights)
        return results if self._keeps_states else [r.without_state() for r in results]

    def value(self) -> dict[str, Tensor]:
        """The mean state. Raises ConfigError if no client ended well, or one is too large to be exact."""
        if self._sums is None or not self._weight:
            raise ConfigError("no client has ended well: there is nothing to average")
        if self._exact is not None:
            self._sums = torch.cat(self._exact.values()) / UNIT  # pyrefly: ignore
            if not self._sums.isfinite().all():
                raise ConfigError(
                    f"a client's state times its rows is above {2**30}, and its sum might not be exact",
                    hint="leave exact out, or weight clients equally",
                )
        means = (self._sums / self._weight).split([shape.numel() for _, shape, _ in self._like])
        return {
            name: as_dtype(mean.view(shape), dtype)
            for (name, shape, dtype), mean in zip(self._like, means, strict=True)
        }

    def _add(self, states: list[Mapping[str, Tensor]], weights: list[float]) -> None:
        if self._sums is None:
            self._like = [(name, t.shape, t.dtype) for name, t in states[0].items()]
            self._sums = torch.zeros(sum(shape.numel() for _, shape, _ in self._like), dtype=torch.float64)
        if self._is_exact:
            self._add_exactly(states, weights, self._sums)
            return
        first = states[0]
        if isinstance(first, StateRow) and all(
            isinstance(s, StateRow) and s.stack is first.stack and s.is_as_stacked for s in states
        ):
            rows = [s.row for s in states]  # pyrefly: ignore
            self._sums += torch.cat(_stacked_sums(first, rows, weights)).cpu()
            return
        parts = self._sums.split([shape.numel() for _, shape, _ in self._like])
        for state, weight in zip(states, weights, strict=True):
            for (name, *_), total in zip(self._like, parts, strict=True):
                total.add_(state[name].flatten().to("cpu", torch.float64), alpha=weight)

    def _add_exactly(self, states: list[Mapping[str, Tensor]], weights: list[float], like: Tensor) -> None:
        """Add each state as a term of its own, in float64: a float32 times fewer than 2^29 rows is exact."""
        exact = self._exact = self._exact or ExactSums([like], MOST_TERMS)
        for state, weight in zip(states, weights, strict=True):
            if self._n_added == MOST_EXACT:
                raise ConfigError(
                    f"more than {MOST_EXACT} clients in an exact mean", hint="use a smaller cohort"
                )
            numbers = [state[name].flatten().to("cpu", torch.float64) for name, *_ in self._like]
            exact.add([torch.cat(numbers).mul_(weight * UNIT)])
            self._n_added += 1
            if self._n_added % MOST_TERMS == 0:
                exact.carry()


def _stacked_sums(first: StateRow, rows: list[int], weights: list[float]) -> list[Tensor]:
    n = len(rows)
    is_prefix = rows == list(range(n))
    sums = []
    alongs: dict[torch.dtype, Tensor] = {}
    for t in (first.stack[own] for own in first.names.values()):
        if len(t) > n or not is_prefix:
            t = t[:n] if is_prefix else t[rows]
        if t.dtype not in (torch.float32, torch.float64):  # in bfloat16 257 rows would count as 256
            t = t.float() if t.is_floating_point() else t.double()
        if t.dtype not in alongs:
            alongs[t.dtype] = torch.tensor(weights, dtype=t.dtype, device=t.device)
        sums.append(torch.mv(t.reshape(n, t.numel() // n).t(), alongs[t.dtype]))
    return sums


def make_reducer(reduce: str | Reducer | None) -> Reducer | None:
    """The reducer of that name, or the one given. Raises ConfigError for an unknown name."""
    if reduce is None or (hasattr(reduce, "take") and hasattr(reduce, "value")):
        return reduce  # pyrefly: ignore
    if isinstance(reduce, str) and reduce == "mean":
        return Mean()
    raise ConfigError(
        f"reduce={quoted(reduce)}", hint="use 'mean', or an object with take(results) and value()"
    )


def as_dtype(value: Tensor, dtype: torch.dtype) -> Tensor:
    """A mean as a tensor of ``dtype``; whole numbers are rounded."""
    return value.to(dtype, copy=True) if dtype.is_floating_point else value.round().to(dtype)
