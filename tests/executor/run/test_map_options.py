"""Options of a map: each is an argument of both doors, and arrives under its name."""

import inspect
from dataclasses import fields

import evenload
from evenload.executor import Executor
from evenload.executor.run.map_options import MapOptions


def test_every_option_is_an_argument_of_both_doors_with_the_same_default() -> None:
    doors = [inspect.signature(door).parameters for door in (evenload.map, Executor.map)]
    for option in fields(MapOptions):
        if option.name in ("is_policy_fixed", "is_spread", "policy"):  # set inside; map's own is "measured"
            continue
        assert [door[option.name].default for door in doors] == [option.default] * 2, option.name
