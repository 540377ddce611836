"""What came of the items of a run: a row for each, and the headline figures of the job's own function."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evenload.events import EventLog, Note, json_text
from evenload.pipeline.dispatch.item_flow import ItemFlow
from evenload.pipeline.dispatch.results import ItemResult, row_of
from evenload.pipeline.target import load_target, locate_target


def item_rows(flow: ItemFlow, seed: int, job_folder: Path) -> list[ItemResult]:
    """One row for each item, in input order. Paths below ``job_folder`` are given relative to it."""
    return [
        row_of(
            item,
            {name: _portable(value, job_folder) for name, value in flow.inputs[at].items()},
            [flow.strands[number] for number in flow.strands_of[at]],
            seed,
            flow.parts_of,
        )
        for at, item in enumerate(flow.items)
    ]


def headline_of(target: str, rows: Sequence[ItemResult], job_folder: Path, log: EventLog) -> dict[str, Any]:
    """The figures that the function ``target`` makes of ``rows``; {} and a warning if it raises."""
    try:
        figures = load_target(locate_target(target, job_folder))([row.to_json() for row in rows])
        return json.loads(json_text({str(name): figure for name, figure in figures.items()}))
    except Exception as error:  # a mistake in a summary must not cost the results
        text = f"no headline: {target} raised {type(error).__name__}: {error}"
        log.emit(Note(log.now(), "warning", "pipeline", text))
        return {}


def _portable(value: Any, job_folder: Path) -> Any:
    folder = f"{job_folder}/"
    return value[len(folder) :] if isinstance(value, str) and value.startswith(folder) else value
