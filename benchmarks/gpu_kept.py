"""What is kept of a run of ``benchmarks/gpu.py``: a checked file for each part, in benchmarks/results/gpu.

A result may come from anybody's machine, so all of it is checked and bounded before it is kept.
"""

import csv
import datetime
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_parts.gpu_results import FORMAT, MOST_ROWS, MOST_TEXT, VERSION, fields_of, is_row, text_of, value_of
from result_files import COMMITTED

from evenload._bounded_json import parse_json
from evenload._private_files import read_named
from evenload.errors import FormatError, quoted

KEPT = COMMITTED / "gpu"
MOST_BYTES = 16_000_000
ORIGIN = ("gpu", "driver", "date", "commit", "versions")
HINT = "give the results.json that benchmarks/gpu.py wrote, as it wrote it"
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
Page = dict[str, Any]


def read_result(path: Path, known: Mapping[str, Any] | set[str]) -> list[Page]:
    """The parts of a result that measured something, each with where it was measured.

    known  names of parts that there are
    Raises FormatError for a file that is none, that only pretended, or that names no GPU; OSError if it
    cannot be read.
    """
    page = parse_json(read_named(path, MOST_BYTES), path.name, MOST_BYTES, parse_constant=lambda _: None)
    if not isinstance(page, dict) or (page.get("format"), page.get("version")) != (FORMAT, VERSION):
        raise FormatError(f"{quoted(path.name)} is no result of the GPU run", hint=HINT)
    parts = page.get("parts")
    if not isinstance(parts, dict) or not all(isinstance(one, dict) for one in parts.values()):
        raise FormatError(f"{quoted(path.name)} has no parts", hint=HINT)
    if page.get("pretended") is not False or any(one.get("pretended") for one in parts.values()):
        raise FormatError(
            f"{quoted(path.name)} was only pretended: its figures are of no GPU",
            hint="run benchmarks/gpu.py without --pretend on a machine with a GPU",
        )
    if unknown := sorted(set(parts) - set(known)):
        raise FormatError(
            f"{quoted(path.name)} has a part {quoted(unknown[0])}, which there is not", hint=HINT
        )
    origin = origin_of(page, path.name)
    return [{"part": name, **origin, **checked(name, one)} for name, one in parts.items() if one.get("rows")]


def origin_of(page: Page, source: str) -> Page:
    """GPU, driver, day, commit and packages of a run. Raises FormatError without GPU or day."""
    found = page.get("gpu")
    lines = found[:MOST_TEXT].splitlines() if isinstance(found, str) else []
    rows = list(csv.DictReader(lines, skipinitialspace=True))
    gpu = text_of(rows[0].get("name")) if rows else ""
    driver = text_of(rows[0].get("driver_version")) if rows else ""
    if not gpu or not driver:
        raise FormatError(f"{quoted(source)} names no GPU with its driver: {quoted(found)}", hint=HINT)
    try:
        date = datetime.datetime.fromisoformat(page["date"]).date().isoformat()
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{quoted(source)} has no day: {quoted(page.get('date'))}", hint=HINT) from error
    versions, machine = page.get("versions"), page.get("machine")
    commit = page.get("commit")
    return {
        "gpu": gpu,
        "driver": driver,
        "date": date,
        "commit": commit if isinstance(commit, str) and _COMMIT.fullmatch(commit) else None,
        "minutes": value_of(page.get("minutes")),
        "versions": value_of({k: text_of(v) for k, v in versions.items()})
        if isinstance(versions, dict)
        else {},
        "cores": value_of(machine.get("cores")) if isinstance(machine, dict) else None,
    }


def checked(name: str, part: Page) -> Page:
    """A part's state, rows, notes and failures, bounded. Raises FormatError if they are none."""
    rows = part.get("rows")
    if not isinstance(rows, list) or len(rows) > MOST_ROWS or not all(map(is_row, rows)):
        raise FormatError(f"the rows of the part {quoted(name)} are none", hint=HINT)
    try:
        return fields_of(part)
    except (KeyError, TypeError) as error:
        raise FormatError(f"the part {quoted(name)} is not whole", hint=HINT) from error


def keep(parts: list[Page], folder: Path) -> list[str]:
    """Write each part's file anew, whole or not at all; returns their names.

    Raises FormatError, and writes nothing, if one would be larger than what is read again.
    """
    texts = {one["part"]: json.dumps(one, indent=1, ensure_ascii=False) + "\n" for one in parts}
    for name, text in texts.items():
        if len(text.encode()) > MOST_BYTES:
            raise FormatError(f"the part {quoted(name)} is too large to be kept", hint=HINT)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        draft = folder / f"{name}.json.draft"
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, folder / f"{name}.json")
    return [part["part"] for part in parts]


def read_kept(name: str, folder: Path) -> Page | None:
    """A part that was kept, None if there is none. Raises FormatError if the file is damaged."""
    path = folder / f"{name}.json"
    if not path.is_file():
        return None
    page = parse_json(read_named(path, MOST_BYTES), path.name, MOST_BYTES)
    if not isinstance(page, dict) or page.get("part") != name or not {*ORIGIN} <= {*page}:
        raise FormatError(f"{quoted(path.name)} is no kept part", hint=HINT)
    return {**page, **checked(name, page)}
