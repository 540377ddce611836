"""The tasks of a program, as workers run them: each writes down what it does, and misbehaves as told."""

import os
import random
from collections.abc import Iterator
from typing import Any

from chaos.deeds import BAD_ITEMS, BY_NAME, MISSED
from chaos.evidence import SEED, attempt, note, once_per_process
from chaos.programs import DEADLY, STRAY, WAITS, Phase, digest, program_of, value_of

BESIDE = 100  # added to the number of a phase: the map that runs beside it
BEFORE = (*DEADLY, *WAITS, *STRAY, "raise", "raise odd", "unpicklable error", "bad result", "bomb result")
"""Deeds that are written down before they are done, as they do not come back."""


def phase_of(number: int) -> Phase:
    return once_per_process(program_of, int(os.environ[SEED])).phases[number % BESIDE]


def items_of(number: int, phase: Phase) -> Iterator[Any]:
    """(item, payload) pairs; what cannot be sent, or breaks on its way, in place of some."""
    for item in range(phase.n):
        deed = phase.deeds.get(item) if number < BESIDE else None
        if item == phase.raises_at and number < BESIDE:
            note("fault", number, item, "iterator raises")
            raise OSError("the source is gone")
        if deed is not None and deed.name in BAD_ITEMS:
            report = f"from chaos.work import bad_item; bad_item({number}, {item}, {deed.name!r})"
            yield BAD_ITEMS[deed.name](random.Random(deed.seed), report)
        else:
            yield item, value_of(0, number, item, phase.size(item))


def bad_item(number: int, item: int, name: str) -> None:
    """A damaged item is met, here and now."""
    note("fault", number, item, name)


def call(number: int, given: Any) -> Any:
    """Do one item: check it, misbehave if it is to, and return its value."""
    item, payload = given
    phase, worker = phase_of(number), os.getpid()
    note("began", number, item)
    if digest(payload) != digest(value_of(0, number, item, phase.size(item))):
        note("input", number, item, digest(payload))
    instead = misbehave_if_told(number, item)
    if instead is not None:
        return instead
    if os.getpid() != worker:
        return "from a child"
    note("ended", number, item)
    return value_of(int(os.environ[SEED]), number, item, phase.size(item))


def misbehave_if_told(number: int, item: int) -> Any:
    """What the item's deed gives instead of its value, if there is one and its time is not over."""
    deed = phase_of(number).deeds.get(item) if number < BESIDE else None
    if deed is None or deed.name in BAD_ITEMS or attempt(number, item) > deed.times:
        return None
    return misbehave(number, item, deed.name, random.Random(deed.seed))


def misbehave(number: int, item: int, name: str, rng: random.Random) -> Any:
    worker = os.getpid()
    if name in BEFORE:
        note("fault", number, item, name)
        instead = BY_NAME[name](rng)
        if instead is MISSED:
            note("missed", number, item, name)
        return None if instead is MISSED else instead
    try:
        return BY_NAME[name](rng)
    finally:
        if os.getpid() == worker:  # a forked child says nothing
            note("fault", number, item, name)


class Each:
    """A task for one item, or for a list of them."""

    def __init__(self, number: int):
        self.number = number

    def __call__(self, given: Any) -> Any:
        if not isinstance(given, list):
            return call(self.number, given)
        worker, values = os.getpid(), []
        for one in given:
            values.append(call(self.number, one))
            if os.getpid() != worker:  # it is a child that came back from a deed: it shall go on to evenload
                return values + [None] * (len(given) - len(values))
        return values

    def close(self) -> None:
        note("closed", self.number)


class Sharing(Each):
    """The same with a large constant, which must be whole at each call."""

    def __init__(self, number: int, constant: Any):
        super().__init__(number)
        self.constant = constant

    def __call__(self, given: Any) -> Any:
        if digest(self.constant) != digest(constant_of(self.number)):
            note("input", self.number, -1, f"the constant: {difference(self.constant, self.number)}")
        return super().__call__(given)


def difference(constant: Any, number: int) -> str:
    """Where a constant is damaged, and by what."""
    import numpy as np

    (wrong,) = np.nonzero(constant != constant_of(number))
    return f"{len(wrong)} bytes from {wrong[:1]} to {wrong[-1:]}, such as {bytes(constant[wrong[:8]])!r}"


def constant_of(number: int) -> Any:
    return value_of(1, number, 0, 2_000_000)


def submitted(number: int, item: int, payload: Any) -> Any:
    return call(number, (item, payload))


def rank(own: Any, number: int, n: int) -> Any:
    """A rank of a gang: the sum over all ranks, twice, with a deed between."""
    import torch
    import torch.distributed as dist

    note("began", number, own.number)
    total = torch.tensor([own.number + 1])
    dist.all_reduce(total)
    deed = phase_of(number).deeds.get(own.number)
    instead = misbehave(number, own.number, deed.name, random.Random(deed.seed)) if deed is not None else None
    dist.all_reduce(total)  # also of a rank with a bad result: the others would wait for it, rightly for ever
    note("ended", number, own.number)
    return int(total) if instead is None else instead
