"""Tests that whatever a stage reads of what it is given is noted, however it reads it."""

import copy
import dataclasses
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evenload.pipeline.stage import Item, StageContext
from evenload.pipeline.stage_reads import SeenInputs, see_context, see_item

VALUES = {"a": 1, "b": [2], "c": None}
ALL = {"names", "value:a", "value:b", "value:c"}


@pytest.mark.parametrize(
    ("read", "seen"),
    [
        (lambda inputs: inputs["a"], {"value:a"}),
        (lambda inputs: inputs.get("z", 3), {"value:z"}),
        (lambda inputs: "z" in inputs, {"value:z"}),
        (lambda inputs: inputs.pop("a"), {"value:a"}),
        (lambda inputs: inputs.setdefault("z", 3), {"value:z"}),
        (lambda inputs: "{a}".format_map(inputs), {"value:a"}),
        (lambda inputs: list(inputs), {"names"}),
        (lambda inputs: sorted(inputs.keys()), {"names"}),
        (lambda inputs: len(inputs), {"names"}),
        (lambda inputs: bool(inputs), {"names"}),
        (lambda inputs: dict(inputs), ALL),
        (lambda inputs: {**inputs}, ALL),
        (lambda inputs: dict(**inputs), ALL),
        (lambda inputs: inputs.copy(), ALL),
        (lambda inputs: inputs | {"z": 1}, ALL),
        (lambda inputs: {"z": 1} | inputs, ALL),
        (lambda inputs: list(inputs.items()), ALL),
        (lambda inputs: list(inputs.values()), ALL),
        (lambda inputs: repr(inputs), ALL),
        (lambda inputs: str(inputs), ALL),
        (lambda inputs: f"{inputs}", ALL),
        (lambda inputs: inputs == VALUES, ALL),
        (pickle.dumps, ALL),
        (copy.deepcopy, ALL),
        (copy.copy, ALL),
        (lambda inputs: inputs.update(z=1), set()),
    ],
)
def test_reads_of_inputs(read: Callable[[Any], object], seen: set[str]) -> None:
    noted: set[str] = set()
    read(SeenInputs(VALUES, noted))
    assert noted == seen


def test_a_mapping_that_cannot_be_read_unseen() -> None:
    """C code takes the insides of a dict without asking it; this is none."""
    inputs = SeenInputs(VALUES, set())
    assert not isinstance(inputs, dict)
    with pytest.raises(TypeError, match="SeenInputs is not JSON serializable"):
        json.dumps(inputs)
    assert json.loads(json.dumps(dict(inputs))) == VALUES
    assert (inputs | {"a": 0})["a"] == 0
    assert ({"a": 0} | inputs)["a"] == 1


@pytest.mark.parametrize(
    ("read", "seen"),
    [
        (lambda item: item.id, {"item:id"}),
        (lambda item: item.rng(), {"item:seed"}),
        (lambda item: item.index, {"item:index"}),
        (lambda item: f"{item}", {"item:index", "item:id", "item:seed", "item:group"}),
        (lambda item: {item: 1}, {"item:index", "item:id", "item:seed", "item:group"}),
        (dataclasses.astuple, {"item:index", "item:id", "item:seed", "item:group"}),
        (lambda item: dataclasses.replace(item, id="b"), {"item:index", "item:seed", "item:group"}),
        (pickle.dumps, {"item:index", "item:id", "item:seed", "item:group"}),
        (copy.deepcopy, {"item:index", "item:id", "item:seed", "item:group"}),
        (lambda item: isinstance(item, Item), set()),
    ],
)
def test_reads_of_an_item(read: Callable[[Item], object], seen: set[str]) -> None:
    noted: set[str] = set()
    read(see_item(Item(1, "a", 7, "g"), noted))
    assert noted == seen


def test_reads_of_a_context() -> None:
    noted: set[str] = set()
    context = StageContext("one", SimpleNamespace(torch="cpu"), Path("/job"), seed=3)
    seen = see_context(context, noted)
    assert seen.torch_devices == ("cpu",)
    assert seen.folder == Path("/job")
    assert seen.stage == "one"
    assert noted == set()
    assert seen.path("w/x.bin") == Path("/job/w/x.bin")
    assert seen.seed == 3
    assert noted == {"file:w/x.bin", "job:seed"}
