"""Fill the tables of docs/gpu.md from what ``benchmarks/gpu.py`` measured.

    python benchmarks/gpu_tables.py RESULTS.json     checks it, keeps its parts in benchmarks/results/gpu
    python benchmarks/gpu_tables.py                  fills from what is kept

A result may come from anybody's machine, so all of it is checked and bounded before it is kept, a file for
each part. Each part's table stands between ``<!-- table: gpu_NAME -->`` and ``<!-- end of table -->``, and
ends with a line that names GPU, driver and day. A part that a result does not have stays as it is, so that
several short runs fill the page together. What only pretended is refused.
"""

import argparse
import csv
import datetime
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_parts.gpu_results import FORMAT, MOST_ROWS, MOST_TEXT, VERSION, fields_of, is_row, text_of, value_of
from markdown_table import markdown
from result_files import COMMITTED, ROOT

if (SOURCE := str(ROOT / "src")) not in sys.path:
    sys.path.insert(0, SOURCE)  # evenload need not be installed

from evenload._bounded_json import parse_json
from evenload._private_files import read_named
from evenload.errors import EvenloadError, FormatError, quoted

PAGE = ROOT / "docs" / "gpu.md"
MARKED = re.compile(r"<!-- table: gpu_(?P<name>\w+) -->\n.*?<!-- end of table -->", re.DOTALL)
NOT_YET = "Not measured yet."
MOST_LINES = 24  # of a part's tables on the page; all rows are in its file
MOST_CELL = 90
PACKAGES = ("torch", "triton", "diffusers", "transformers", "wgpu", "jax")
UNITS = {  # by a column's ending, the first that fits; bytes have their unit beside the figure
    "_gb_s": ", GB/s", "_items_s": " items/s", "tems_s": "tems/s", "_a_s": " a second",
    "_us": ", µs", "_ms": ", ms", "_s": ", s",
}  # fmt: skip
_UNSAFE = re.compile(r"[^A-Za-z0-9 .,:;()+/%=^×µ–…'?!-]")
KEPT = COMMITTED / "gpu"
MOST_BYTES = 16_000_000
ORIGIN = ("gpu", "driver", "date", "commit", "versions")
HINT = "give the results.json that benchmarks/gpu.py wrote, as it wrote it"
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
Row, Page = Mapping[str, Any], dict[str, Any]


def filled(text: str, folder: Path) -> str:
    """``text`` with the table of every part made anew of what is kept in ``folder``."""

    def fill(match: re.Match[str]) -> str:
        part = read_kept(match["name"], folder)
        inside = NOT_YET if part is None else shown(part)
        return f"<!-- table: gpu_{match['name']} -->\n{inside}\n<!-- end of table -->"

    return MARKED.sub(fill, text)


def shown(part: Row) -> str:
    """A part's rows as tables, and the line that says where they come from."""
    rows = part["rows"][:MOST_LINES]
    pieces = tables(rows)
    left_out = len(part["rows"]) - len(rows)
    if left_out:
        pieces.append(f"{left_out} more rows are in `benchmarks/results/gpu/{part['part']}.json`.")
    return "\n\n".join([*pieces, origin(part)])


def tables(rows: Sequence[Row]) -> list[str]:
    """Rows of equal columns together in a table; those that have no equal in one of names and figures."""
    alike: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        alike.setdefault(tuple(key for key in row if key != "what"), []).append(row)
    made, single = [], []
    for names, some in alike.items():
        if len(some) == 1:
            single.append([cell(some[0]["what"]), listed({name: some[0][name] for name in names})])
        else:
            lines = [[cell(row["what"]), *(cell(row[name], name) for name in names)] for row in some]
            made.append(markdown(["", *map(heading, names)], lines))
    return [*made, markdown(["", "measured"], single, 2)] if single else made


def heading(name: str) -> str:
    """A column's name with its unit: ``item_s`` is "item, s", ``x_bound`` "× bound"."""
    if name.startswith("x_"):
        return cell(f"× {name[2:].replace('_', ' ')}")
    for ending, unit in UNITS.items():
        if name.endswith(ending) and len(name) > len(ending):
            return cell(name.removesuffix(ending).replace("_", " ") + unit)
    return cell(name.replace("_", " "))


def listed(values: Mapping[str, Any]) -> str:
    return "; ".join(f"{heading(name)} {cell(value, name)}" for name, value in values.items()) or "–"


def cell(value: Any, name: str = "") -> str:
    """A value as a cell of a table; a stranger's text keeps only characters that mean nothing in Markdown."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        is_of_bytes = name.endswith("_bytes") and not name.startswith("x_")
        return in_bytes(value) if is_of_bytes else number(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{heading(str(key))} {cell(one, str(key))}" for key, one in value.items()) or "–"
    if isinstance(value, list):
        return ", ".join(map(cell, value)) or "–"
    text = " ".join(_UNSAFE.sub(" ", str(value)[: 4 * MOST_CELL].replace("*", "×")).split())
    return text if len(text) <= MOST_CELL else f"{text[: MOST_CELL - 1]}…"


def number(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    size = abs(value)
    if size and (size < 1e-3 or size >= 1e7):
        return f"{value:.3g}"
    return f"{value:,.0f}" if size >= 1000 else f"{value:.4g}"


def in_bytes(value: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}" if abs(value) < 1000 * size else f"{value / size:,.0f} {unit}"
    return f"{value:.0f} B"


def origin(part: Row) -> str:
    """Where a part was measured, and what of it failed."""
    versions = [f"{name} {part['versions'][name]}" for name in PACKAGES if name in part.get("versions", {})]
    pieces = [cell(part["gpu"]), f"driver {cell(part['driver'])}", cell(part["date"]), *map(cell, versions)]
    pieces += [f"commit {cell(part['commit'])[:12]}"] if part.get("commit") else []
    wrong = [] if part["state"] == "ran" else [f"the part ended as: {cell(part['state'])}"]
    wrong += [f"failed: {', '.join(map(cell, part['failed'][:5]))}"] if part["failed"] else []
    command = f"`python benchmarks/gpu.py --only {part['part']}`"
    return f"*{'; '.join([', '.join(pieces), *wrong])}: {command}*"


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


def main(arguments: Sequence[str] | None = None, page: Path = PAGE, folder: Path = KEPT) -> int:
    """Exit code: 0 if all went well, 2 if the result is refused; then nothing is written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("result", nargs="?", type=Path, metavar="RESULTS.json")
    result = parser.parse_args(arguments).result
    before = page.read_text(encoding="utf-8")
    try:
        if result:
            known = {match["name"] for match in MARKED.finditer(before)}
            names = keep(read_result(result, known), folder)
            print(f"kept: {', '.join(names) or 'nothing, as no part measured anything'}")
        after = filled(before, folder)
    except (EvenloadError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    if after != before:
        page.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
