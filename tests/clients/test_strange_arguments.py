"""Arguments of any type to ``evenload.clients``: a right answer or an error that says why."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from examples_count import examples
from strange_values import STRANGE, check

from evenload.clients import Recipe, Trainer, federate, train
from evenload.clients.algorithms.cohort import Cohort
from evenload.errors import ConfigError

DATA = [(torch.ones(4, 3), torch.zeros(4, dtype=torch.long)) for _ in range(2)]
RECIPE = Recipe(batch_size=2, epochs=1)


def model() -> torch.nn.Module:
    return torch.nn.Linear(3, 2)


CALLS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "train": (
        lambda **given: train(model, DATA, RECIPE, **{"strategy": "serial"} | given),
        (
            "strategy",
            "seed",
            "start",
            "ids",
            "anchor",
            "corrections",
            "round",
            "threads",
            "on_error",
            "reduce",
        ),
    ),
    "federate": (
        lambda **given: federate(model, DATA, RECIPE, **{"rounds": 1, "strategy": "serial"} | given),
        ("algorithm", "cohort", "evaluate_every", "strategy", "seed"),
    ),
    "Trainer": (lambda **given: Trainer(model, **given).close(), ("strategy", "seed", "rounds", "threads")),
    "Cohort": (Cohort, ("size", "drop_out")),
}
CASES = [
    (name, option, value)
    for name, (_, options) in CALLS.items()
    for option in options
    for value in STRANGE
    if not (option == "threads" and isinstance(value, int) and value > 4)
]


@pytest.mark.filterwarnings("ignore:a cohort of", "ignore:.*masked element")
def test_whatever_is_given_there_is_an_answer_or_a_reason() -> None:
    """Oracle: the promise that what cannot be used raises an error of evenload's, with words of a length."""
    for name, option, value in random.Random(7).sample(CASES, min(examples(len(CASES)), len(CASES))):
        call = partial(CALLS[name][0], **{option: value})
        check(f"{name}({option}=a {type(value).__name__})", call, lambda _: True)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: federate(model, DATA, RECIPE, "FedAvg", rounds=1), "FedAvg()"),
        (lambda: train(model, DATA, RECIPE, seed=10**40), "give a whole number from -9223372036854775808"),
    ],
)
def test_what_was_meant_is_named(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        call()
    assert said in str(raised.value)
