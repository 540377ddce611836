"""No item finds the context variables that another has set; all find the call's, and the constructor's.

The oracle is a plain loop of the standard library: each item in a thread of its own, which begins with
nothing and sets what the caller had.
"""

import contextvars
import decimal
import threading
from decimal import Decimal
from typing import Any

import numpy as np
import process_probe  # OWN is in a module that workers import: a variable cannot be pickled
import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.executor import Executor
from evenload.executor.task.item_context import CallerContext
from evenload.executor.task.task import PreparedTask, Runner
from evenload.executor.transport.progress_cell import ProgressCell


def careless(deed: str) -> tuple[str, str, str, str]:
    """What the item finds; then it leaves something behind."""
    found = (
        str(Decimal(1) / Decimal(7)),
        decimal.getcontext().rounding,
        process_probe.OWN.get("unset"),
        np.geterr()["over"],
    )
    if deed == "precision":
        decimal.getcontext().prec = 3
    elif deed == "context":
        decimal.setcontext(decimal.Context(prec=5, rounding=decimal.ROUND_UP))
    elif deed == "variable":
        process_probe.OWN.set("set by an item")
    elif deed == "errors":
        np.seterr(over="ignore")
    return found


class Careful:
    """Sets in its constructor what all of its items should find."""

    def __init__(self) -> None:
        decimal.getcontext().prec = 9
        process_probe.OWN.set("set by the constructor")
        np.seterr(over="raise")

    def __call__(self, deed: str) -> tuple[str, str, str, str]:
        return careless(deed)


def plain_loop(deeds: list[str], precision: int | None, is_built: bool) -> list[Any]:
    found: list[Any] = []

    def one(deed: str) -> None:
        if precision is not None:
            decimal.getcontext().prec = precision
        found.append((Careful() if is_built else careless)(deed))

    for deed in deeds:
        thread = threading.Thread(target=one, args=(deed,))
        thread.start()
        thread.join(timeout=500)
    return found


def in_context(precision: int | None, call: Any) -> Any:
    """Call in a context of its own, with this precision."""

    def within() -> Any:
        if precision is not None:
            decimal.getcontext().prec = precision
        return call()

    return contextvars.Context().run(within)


DEEDS = st.lists(st.sampled_from(["", "precision", "context", "variable", "errors"]), max_size=6)


@settings(max_examples=examples(60), deadline=None)
@given(DEEDS, st.none() | st.integers(4, 40), st.booleans(), st.sampled_from([None, 1]))
def test_items_find_what_a_plain_loop_would(
    deeds: list[str], precision: int | None, is_built: bool, batch: int | None
) -> None:
    def run() -> Any:
        fn: Any = Careful if is_built else careless
        if batch is not None and not is_built:
            fn = as_batch
        task = PreparedTask(
            1, "fn", fn, is_class=is_built, batch=None if is_built else batch, caller=CallerContext.of_now()
        )
        cell = ProgressCell()
        cell.begin(1)
        return contextvars.Context().run(lambda: Runner(task, lambda: None).run(deeds, cell).values)

    assert in_context(precision, run) == plain_loop(deeds, precision, is_built)


def as_batch(deeds: list[str]) -> list[Any]:
    return [careless(deed) for deed in deeds]


@pytest.mark.parametrize("precision", [None, 11])
def test_items_find_the_callers_context_on_every_backend(executor: Executor, precision: int | None) -> None:
    deeds = ["precision", "", "context", "variable", "errors", ""]
    results = in_context(precision, lambda: list(executor.map(careless, deeds)))
    assert results == plain_loop(deeds, precision, is_built=False)
    called = in_context(precision, lambda: executor.submit(careless, "precision").result())
    assert called == results[0]
