"""Whether what a worker answers can be true: pure. Nothing of it is believed before.

answer ──► fault_of ──► "": it may be ──► its times are bounded ──► OutcomeReader
                   └──► what is wrong: it costs the worker, and what ran there runs elsewhere
"""

import dataclasses
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from evenload.executor.task.answer import Answer, checked_waits
from evenload.pipeline.dispatch.device_group import DeviceGroup
from evenload.pipeline.dispatch.item_flow import StageTask
from evenload.pipeline.dispatch.worker_protocol import (
    GIVE,
    KEYS,
    LOAD,
    LOOK,
    RUN,
    FilePiece,
    Order,
    OrderOutcome,
    is_task,
    is_whole,
)
from evenload.pipeline.file_types import is_file_type
from evenload.pipeline.json_values import is_json, is_plain
from evenload.pipeline.part_keys import MOST_PARTS, is_key
from evenload.pipeline.site import SiteReport
from evenload.pipeline.stage import StageSetup

OF_LOADS = ("loaded", "refused", "memory")
ENDS = ("done", "failed", "memory", "again", "lacks")
HOW_LOADED = ("", "read", "unparked", "kept")
HOW_COMPARED = re.compile(r"|differs|refused|equal(, [0-9.]{1,20}x as fast)?")
MOST_TEXT = 65_536  # characters of a part of an error
MOST_READS = 100_000
MOST_LANES = 1 << 16
MOST_KEY = 1000  # characters of a batch key; longer ones come as digests
MOST_S = 1e8  # of a task, three years
AHEAD_S = 60.0  # that the clock of another machine may seem to be ahead
MOST_BYTES = 1 << 60
N_DIGITS = 32  # of a digest


class OutcomeCheck:
    """The rules for the answers of a run's workers.

    place_of   where a task's output belongs, relative to the run folder; None if that is no file of its stage
    is_remote  workers may be on other machines, and say what those have
    """

    def __init__(
        self,
        stages: Sequence[StageSetup],
        place_of: Callable[[StageTask, str], str | None],
        *,
        is_remote: bool = False,
    ):
        self._stages, self._place_of, self._is_remote = tuple(stages), place_of, is_remote

    def fault_of(self, answer: Answer, order: Order, group: DeviceGroup) -> str:
        """What is wrong with the answer to ``order``, in words that fit after "it sent"; "" if nothing is.

        group  whose worker it is
        An order that raised, or was skipped, has no outcomes.
        """
        if answer.failures or not answer.values:
            return ""
        (outcomes,) = answer.values
        if type(outcomes) is not list or not all(map(is_whole, outcomes)):
            return "an answer that is none"
        running, saving, n_loads = set(group.running), set(group.saving), 0
        for one in outcomes:
            fault = self._of_fields(one) or self._of_kind(one, order)
            if fault:
                return fault
            if one.task is None:
                n_loads += one.kind in OF_LOADS
            elif one.kind == "made" and one.task in running:
                running.discard(one.task)
                saving.add(one.task)
            elif one.kind != "made" and one.task in running | saving:
                running.discard(one.task)
                saving.discard(one.task)
            else:
                return "an outcome of an item that it was not given"
        if n_loads != (order.kind == LOAD):
            return "another number of loads than it was told"
        is_left = not group.with_lanes and any(one.task in running for one in order.inputs)
        return "no outcome of an item" if order.kind in (RUN, KEYS) and is_left else ""

    def _of_fields(self, one: OrderOutcome) -> str:
        """What is wrong with the types and sizes of its fields."""
        if not _is_count(one.stage, len(self._stages) - 1):
            return "an outcome of no stage"
        if one.task is not None and one.task.stage != one.stage:
            return "an outcome of another stage"
        wrong = next((name for name, may_be in _FIELDS.items() if not may_be(getattr(one, name))), None)
        if wrong is not None:
            return f"an outcome whose {wrong} cannot be"
        if one.kind != "done" and (one.outputs or one.files):
            return "outputs of an item that is not done"
        return "" if all(map(self._is_parked, one.parked.items())) else "parked models that it cannot have"

    def _of_kind(self, one: OrderOutcome, order: Order) -> str:
        """What is wrong with an outcome of its kind, as an answer to ``order``."""
        if one.kind == "piece":
            return "" if self._is_remote and _is_piece(one.piece) else "a piece of no file"
        if one.kind == "site":
            is_asked = self._is_remote and order.kind in (LOOK, GIVE)
            return "" if is_asked and self._is_report(one.site) else "a report that nobody asked for"
        if one.piece is not None or one.site is not None:
            return "an outcome that is none"
        if one.task is None:
            is_due = order.kind == LOAD and order.stage == one.stage and one.kind in OF_LOADS
            return "" if is_due and one.how in HOW_LOADED else "news of a load that nobody asked for"
        if one.kind == "keyed":
            is_key = one.key is None or (type(one.key) is str and len(one.key) <= MOST_KEY)
            return "" if order.kind == KEYS and is_key else "a key that nobody asked for"
        if one.kind not in ("made", *ENDS) or (one.kind == "lacks" and not self._is_remote):
            return "an outcome of no kind"
        if not HOW_COMPARED.fullmatch(one.how):
            return "a comparison that is none"
        return self._of_outputs(one, one.task) if one.kind == "done" else ""

    def _of_outputs(self, one: OrderOutcome, task: StageTask) -> str:
        """What is wrong with the outputs of a task that is done."""
        stage = self._stages[task.stage]
        outputs, files = one.outputs, one.files
        if not all(isinstance(name, str) for name in outputs):
            return "outputs that are none"
        keys: Collection[str] = ()
        if stage.expand:
            keys = outputs.get(stage.expand, ())
            if type(keys) is not list or len(keys) > MOST_PARTS or not all(map(is_key, keys)):
                return "parts that are none"
        elif stage.outputs.keys() - outputs.keys():
            return "outputs that are not all that its stage has"
        declared = {name for name, kind in stage.outputs.items() if is_file_type(kind)}
        for name, value in outputs.items():
            is_file = name in declared or _of_part(name, keys) in declared
            if is_file and not (_is_file(files.get(name)) and value == self._place_of(task, name)):
                return "a file that belongs to another place"
            may_nest = "json" in (stage.outputs.get(name), stage.outputs.get(_of_part(name, keys)))
            is_value = isinstance(value, float) or is_plain(value) or value is keys
            is_value = is_value or (may_nest and is_json(value))
            if not is_file and (name in files or not is_value):
                return "an output that is no plain value"
        return "" if files.keys() <= outputs.keys() else "files that are no outputs"

    def _is_parked(self, one: tuple[Any, Any]) -> bool:
        stage, seconds = one
        is_time = _is_number(seconds) and 0 <= seconds <= MOST_S
        return _is_count(stage, len(self._stages) - 1) and is_time

    def _is_report(self, report: Any) -> bool:
        names = [field.name for field in dataclasses.fields(SiteReport)]
        if type(report) is not SiteReport or not all(hasattr(report, name) for name in names):
            return False
        if not isinstance(report.lacks, Mapping):
            return False
        lacks = all(
            _is_count(stage, len(self._stages) - 1) and type(paths) is tuple and all(map(_is_text, paths))
            for stage, paths in report.lacks.items()
        )
        return lacks and type(report.has_run_folder) is bool and type(report.has_job_files) is bool


def bound_times(outcome: OrderOutcome, now: float) -> OrderOutcome:
    """Return it with its times; with none, ``now``, where they cannot be; and no more waiting than time.

    A stage may have moved the clock of its process: tests freeze it.
    """
    start_s, stop_s = outcome.start_s, outcome.stop_s
    may_be = math.isfinite(start_s + stop_s) and 0 <= stop_s - start_s <= MOST_S and start_s >= 0
    if not (may_be and stop_s <= now + AHEAD_S):
        start_s = stop_s = now
    waited_s, cpu_s = checked_waits(stop_s - start_s, outcome.waited_s, outcome.cpu_s)
    return dataclasses.replace(outcome, start_s=start_s, stop_s=stop_s, waited_s=waited_s, cpu_s=cpu_s)


def _of_part(name: str, keys: Collection[str]) -> str:
    """The output of a part that ``name`` means; "" if it means none."""
    key, _, output = name.partition(".")
    return output if key in keys else ""


def _is_count(number: Any, most: int) -> bool:
    return type(number) is int and 0 <= number <= most


def _is_number(number: Any) -> bool:
    return type(number) is float or (type(number) is int and abs(number) <= MOST_BYTES)


def _is_text(text: Any) -> bool:
    return isinstance(text, str) and len(text) <= MOST_TEXT


def _is_piece(piece: Any) -> bool:
    """What it holds, and whose it is, is looked at where it is written."""
    if type(piece) is not FilePiece or len(piece) != len(FilePiece._fields) or not is_task(piece.task):
        return False
    is_counted = _is_count(piece.n_bytes, MOST_BYTES) and _is_count(piece.start, MOST_BYTES)
    return is_counted and _is_text(piece.output)


def _is_file(said: Any) -> bool:
    """``[bytes, digest]``."""
    is_list = type(said) is list and len(said) == 2
    return is_list and _is_count(said[0], MOST_BYTES) and type(said[1]) is str and len(said[1]) == N_DIGITS


def _is_error(error: Any) -> bool:
    """Three texts: type, message and traceback."""
    return type(error) is tuple and len(error) == 3 and all(map(_is_text, error))


def _are_names(reads: Any) -> bool:
    is_tuple = type(reads) is tuple and len(reads) <= MOST_READS
    return reads is None or (is_tuple and all(map(_is_text, reads)))


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "error": _is_error,
    **dict.fromkeys(("start_s", "stop_s", "told_s"), _is_number),
    "peak_bytes": lambda n_bytes: n_bytes is None or _is_count(n_bytes, MOST_BYTES),
    "n_lanes": lambda n_lanes: _is_count(n_lanes, MOST_LANES),
    **dict.fromkeys(("must_replace", "can_batch", "gives_keys"), lambda flag: type(flag) is bool),
    "how": _is_text,
    **dict.fromkeys(("outputs", "files", "parked"), lambda some: type(some) is dict),
    "reads": _are_names,
}
