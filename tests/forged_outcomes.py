"""Answers of stage workers with something changed in them; also used by stages in workers."""

import copy
import dataclasses
import math
import random
from typing import Any

from evenload.pipeline.dispatch.item_flow import StageTask
from evenload.pipeline.dispatch.worker_protocol import FilePiece, OrderOutcome
from evenload.pipeline.site import SiteReport

__all__ = ["PIECE", "TASKS", "Bare", "forged"]


class Bare:
    """Unpickles as an object of a class without any of its fields."""

    def __init__(self, kind: type):
        self.kind = kind

    def __reduce__(self) -> tuple:
        return object.__new__, (self.kind,)


TASKS = [StageTask(stage, strand) for stage in (0, 1) for strand in (0, 1)]
PIECE = FilePiece(TASKS[0], "drawn", 3, 0, b"abc")
PLACES = ("/etc/passwd", "../x.png", "outputs/draw/../../x.png", "outputs/draw/9.png", "", "x" * 70_000)
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 99, 10**400, 10**5000, 2.5, math.nan, -math.inf, "x", "x" * 10**6, b"x", (), [],
    {}, [None], {"x": [1, 2]}, {1: 2}, {"x": math.inf}, {"x": object()}, object(), OrderOutcome, ("", ""),
    ("", "", 1), *TASKS,
    StageTask(0, 77), StageTask(9, 0), StageTask(0, "0"), tuple.__new__(StageTask, (0,)), *PLACES,
    {"drawn": "/etc/passwd", "n": 1}, {"drawn": [3, "0" * 32]}, {"drawn": [-3, "0" * 32]}, {"drawn": None},
    "loaded", "refused", "made", "done", "failed", "memory", "again", "lacks", "site", "piece", "equal",
    SiteReport(), SiteReport(1, 2, 3), object.__new__(SiteReport), PIECE,
    FilePiece(TASKS[0], "../x", -1, "0", None), tuple.__new__(FilePiece, (TASKS[0],)),
)  # fmt: skip


def forged(rng: random.Random, outcomes: list[Any]) -> Any:
    """These outcomes with something changed in them."""
    outcomes = [copy.copy(one) for one in outcomes]
    how = rng.random()
    if how < 0.1:
        return rng.choice(ODD)
    if how < 0.2 or not outcomes:
        return [*outcomes, rng.choice((*ODD, *outcomes))]
    at = rng.randrange(len(outcomes))
    if how < 0.3:
        del outcomes[at]
    elif how < 0.35:
        outcomes[at] = object.__new__(OrderOutcome)
    else:
        name = rng.choice([field.name for field in dataclasses.fields(OrderOutcome)])
        setattr(outcomes[at], name, rng.choice(ODD))
    return outcomes
