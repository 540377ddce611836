"""List the items of a job: files of a folder or a pattern, or rows of a JSON-lines, CSV or parquet file."""

import csv
import glob
import io
import json
import math
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, Any

from evenload._optional import require
from evenload._private_files import plain_file
from evenload._user_folders import user_cache
from evenload.errors import ConfigError, EvenloadError, did_you_mean, quoted
from evenload.pipeline.job.openai_batch import batch_rows
from evenload.pipeline.job.remote_files import RemoteCopies, is_remote, joined
from evenload.pipeline.job.section import one_line
from evenload.pipeline.job.yaml_text import Fault, Place
from evenload.pipeline.json_values import is_json
from evenload.pipeline.seeds import item_seed
from evenload.pipeline.stage import Item

if TYPE_CHECKING:
    from evenload.pipeline.job.spec_settings import ColumnType, InputsSection

Items = list[tuple[Item, dict[str, Any]]]
Faults = list[Fault]
Rows = list[tuple[str, dict[str, Any]]]
Line = tuple[int, dict[str, Any] | str]
FOLDER = "folder"  # a value of group_by that is no column
_MOST_SHOWN = 20
_AS_PYTHON = ("int64", "float64")  # numbers of NumPy that become Python's with the same results


def find_items(
    inputs: "InputsSection", folder: Path, seed: int, values: Any = None
) -> tuple[Items, Faults, list[str]]:
    """Return every item with its values, what is wrong with the inputs, and notes.

    Files are sorted by path, rows are in the order of their table; paths are absolute.

    values  items that a program gives, in the place of a file's
    """
    faults: Faults = []
    notes: list[str] = []
    given = str(getattr(inputs, inputs.source))
    if values is not None:
        rows = _given_rows(values, inputs, folder, faults, notes)
    elif inputs.folder is not None or inputs.glob is not None:
        rows = (_remote_rows if is_remote(given) else _file_rows)(inputs, folder, faults, notes)
    else:
        rows = _table_rows(inputs, folder, given, _place(inputs), faults, notes)
    _fetch_all(inputs, rows, faults)
    _refuse_repeated(rows, _place(inputs), faults)
    faults += _column_faults(inputs, rows)
    items = []
    for index, (name, values) in enumerate(rows):
        group = values.get(inputs.group_by) if inputs.group_by else None
        items.append(
            (Item(index, name, item_seed(seed, name), None if group is None else str(group)), values)
        )
    n_left_out = len(faults) - _MOST_SHOWN
    more = [(("...",), f"and {n_left_out} more")] if n_left_out > 0 else []
    return items, faults[:_MOST_SHOWN] + more, notes


def _place(inputs: "InputsSection") -> Place:
    return ("job", "inputs", inputs.source)


def _column_faults(inputs: "InputsSection", rows: Rows) -> Faults:
    """Return faults of columns that ``group_by`` and ``paths`` name, each told once with a count."""
    known = sorted({column for _, values in rows for column in values})
    faults: Faults = []
    for key in ("paths", "types") if rows else ():
        # A column that no item has may be one of items to come; one that is nearly there is misspelt.
        for column in getattr(inputs, key) if key in inputs.model_fields_set else ():
            if column not in known and did_you_mean(column, known):
                faults.append((("job", "inputs", key), f"no item has a column {_nearest(column, known)}"))
    lacking = [name for name, values in rows if inputs.group_by and not _text(values.get(inputs.group_by))]
    if lacking:
        column, named = str(inputs.group_by), ", ".join([*map(repr, lacking[:3]), "..."][: len(lacking)])
        what = f"has no column {_nearest(column, known)}"
        if column in known:
            what = f"has nothing in its column {quoted(column)}"
        who = f"item {named}" if len(lacking) == 1 else f"each of {len(lacking)} items ({named})"
        faults.append((("job", "inputs", "group_by"), f"{who} {what}"))
    return faults


def _text(value: Any) -> str:
    return "" if value is None else str(value).strip()


def _nearest(name: str, known: Sequence[str]) -> str:
    return f"{quoted(name)}; {did_you_mean(name, known)}columns: {', '.join(known[:_MOST_SHOWN]) or 'none'}"


def _file_rows(inputs: "InputsSection", folder: Path, faults: Faults, notes: list[str]) -> Rows:
    root, files = _files(inputs, folder, notes)
    if not files:
        where = f"in {root}" if inputs.folder is not None else f"that matches {inputs.glob} in {folder}"
        is_nested = (
            inputs.folder is not None and root.is_dir() and any(one.is_dir() for one in root.iterdir())
        )
        below = f"; for those of its folders use glob: {inputs.folder}/*/*" if is_nested else ""
        lost = "".join(f"; {note}" for note in notes)
        faults.append((_place(inputs), f"there is no file {where}{below}{lost}"))
    columns = _columns_of(inputs, folder, faults, notes)
    found = {str(path): _relative(path, root) for path in sorted(files)}
    rows = []
    for path, (name, stem) in _ids_of(found, notes).items():
        values = {**columns.get(name, columns.get(stem, {})), "path": path}
        if inputs.group_by == FOLDER and "/" in name:
            values.setdefault(FOLDER, name.rpartition("/")[0])
        rows.append((name, values))
    if inputs.group_by == FOLDER and inputs.glob is not None:
        faults += [
            (_place(inputs), f"the folder {empty} has no file that matches: fill it, or take it away")
            for empty in _empty_folders(str(inputs.glob), folder, files)
        ]
    return rows


def _given_rows(values: Any, inputs: "InputsSection", folder: Path, faults: Faults, notes: list[str]) -> Rows:
    """Return a row for each item that a program gives: a dict's values, a ``path``, or a ``value``.

    An item without an id has its position for one, a path what it would have in a folder.
    """
    given = list(_given_items(values))
    files = {_absolute(folder / one) for one in given if isinstance(one, PurePath)}
    root = Path(os.path.commonpath([file.parent for file in files])) if files else folder
    ids = _ids_of({str(file): _relative(file, root) for file in sorted(files)}, notes)
    rows: Rows = []
    for number, one in enumerate(given):
        row = dict(one) if isinstance(one, Mapping) else {}
        if not isinstance(one, Mapping):
            row["path" if isinstance(one, PurePath) else "value"] = one
        for column, value in row.items():
            is_path = isinstance(value, PurePath) or (column in inputs.paths and isinstance(value, str))
            if is_path and not is_remote(str(value)):
                row[column] = str(_absolute(folder / value))
            elif getattr(value, "ndim", None) == 0:  # a NumPy or torch scalar
                row[column] = value.item()
                if type(row[column]) in (int, float) and str(value.dtype).split(".")[-1] not in _AS_PYTHON:
                    text = f"column {quoted(column)} holds {quoted(value)}, of type {value.dtype}"
                    text += ", with which Python's own numbers do not reckon alike; give float(x), int(x)"
                    faults.append(((f"items[{number}]",), text))
            if not is_json({column: row[column]}):
                text = f"column {quoted(column)} holds {quoted(value)}, of type {type(value).__name__}"
                text += ", which a table cannot; give numbers, texts, booleans, None, lists or dicts of these"
                faults.append(((f"items[{number}]",), f"{text}, or the path of a file that holds it"))
        name = row.get(inputs.id)  # which a stage gets too, as of a plain loop
        if not _text(name):
            name = ids[row["path"]][0] if isinstance(one, PurePath) else number
        faults += [((f"items[{number}]",), text) for text in apply_types(row, inputs.types)]
        rows.append((str(name), row))
    if not rows:
        faults.append((("items",), "there is none"))
    return rows


def _given_items(values: Any) -> Iterable[Any]:
    """Return the items that a program gives; of a frame its rows, without what is missing in them."""
    if isinstance(values, str | bytes | PurePath) or not isinstance(values, Iterable):
        raise ConfigError(
            f"{quoted(values)} are no items",
            hint='give a list of dicts, of values or of paths, a frame, or inputs: {"glob": "in/*.png"}',
        )
    frame: Any = values
    if hasattr(frame, "iter_rows"):  # of polars
        rows = frame.iter_rows(named=True)
    elif hasattr(frame, "notna") and hasattr(frame, "columns"):  # of pandas
        rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    else:
        return values
    return ({name: one for name, one in row.items() if one is not None} for row in rows)


def _columns_of(
    inputs: "InputsSection", folder: Path, faults: Faults, notes: list[str]
) -> dict[str, dict[str, Any]]:
    """Return the columns that ``table`` adds to files, by id."""
    if inputs.table is None:
        return {}
    return dict(_table_rows(inputs, folder, inputs.table, ("job", "inputs", "table"), faults, notes))


def _remote_rows(inputs: "InputsSection", folder: Path, faults: Faults, notes: list[str]) -> Rows:
    """Return a row for each file of a remote folder or pattern; ids are relative to what has no wildcard."""
    given = str(getattr(inputs, inputs.source))
    try:
        found = _copies(inputs).listed(given, is_pattern=inputs.glob is not None)
    except EvenloadError as error:
        faults.append((_place(inputs), one_line(error)))
        return []
    if not found:
        faults.append((_place(inputs), f"there is no file at {given}"))
    columns, rows = _columns_of(inputs, folder, faults, notes), []
    root = given.rstrip("/") if inputs.folder is not None else re.split(r"[^/]*[*?\[]", given)[0].rstrip("/")
    places = {url: PurePosixPath(url.removeprefix(root).lstrip("/")) for url in found}
    for url, (name, stem) in _ids_of(places, notes).items():
        rows.append((name, {**columns.get(name, columns.get(stem, {})), "path": url}))
    return rows


def _relative(path: Path, root: Path) -> PurePath:
    return path.relative_to(root) if path.is_relative_to(root) else PurePath(path.name)


def _ids_of(files: Mapping[str, PurePath], notes: list[str]) -> dict[str, tuple[str, str]]:
    """Return the id of each file, and its name without suffix: that is the id where no other file has it."""
    stems = {path: name.with_suffix("").as_posix() for path, name in files.items()}
    ids, n_before = dict(stems), -1
    whole: set[str] = set()
    while len(whole) > n_before:  # "a.jpg" may be the stem of "a.jpg.png", too
        n_before, count = len(whole), Counter(ids.values())
        whole |= {path for path, name in ids.items() if count[name] > 1}
        ids |= {path: files[path].as_posix() for path in whole}
    if whole:
        named = ", ".join(quoted(ids[path]) for path in sorted(whole)[:4])
        notes.append(
            f"{len(whole)} files differ from others by their suffix only, which is in their ids, therefore: "
            f"{named}{', ...' if len(whole) > 4 else ''}; glob: in/*.jpg takes files of one kind"
        )
    return {path: (name, stems[path]) for path, name in ids.items()}


def _fetch_all(inputs: "InputsSection", rows: Rows, faults: Faults) -> None:
    """Put the paths of local copies in place of the addresses in columns that hold paths."""
    columns = {*inputs.paths, "path"} if inputs.source in ("folder", "glob") else set(inputs.paths)
    places = [
        (name, values, column)
        for name, values in rows
        for column in sorted(columns)
        if isinstance(values.get(column), str) and is_remote(values[column])
    ]
    copies = _copies(inputs).of_all(values[column] for _, values, column in places) if places else {}
    for name, values, column in places:
        copy = copies[values[column]]
        if isinstance(copy, EvenloadError):
            faults.append(((f"item {quoted(name)}, {column}",), one_line(copy)))
        else:
            values[column] = str(copy)


def _copies(inputs: "InputsSection") -> RemoteCopies:
    return RemoteCopies(user_cache() / "remote", inputs.file_limit)


def _empty_folders(pattern: str, folder: Path, files: set[Path]) -> list[str]:
    """Return folders that the pattern reaches into and takes no file from: categories without items."""
    parents = pattern.rpartition("/")[0]
    if not glob.has_magic(parents) or "**" in parents:
        return []
    filled = {path.parent for path in files}
    found = [one for one in glob.glob(parents, root_dir=folder) if (folder / one).is_dir()]
    return sorted(one for one in found if _absolute(folder / one) not in filled)


def _files(inputs: "InputsSection", folder: Path, notes: list[str]) -> tuple[Path, set[Path]]:
    """Return the folder that ids are relative to, and the files; a note tells links that lead nowhere."""
    if inputs.folder is not None:
        root = (folder / inputs.folder).resolve()
        inside = root.iterdir() if root.is_dir() else ()
        found = {path for path in inside if not path.name.startswith(".")}
    else:
        parts = Path(str(inputs.glob)).parts
        n_fixed = next((n for n, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
        root = _absolute(folder.joinpath(*parts[:n_fixed]))
        matches = glob.glob(str(inputs.glob), root_dir=folder, recursive=True)
        found = {_absolute(folder / match) for match in matches}
    lost = sorted(path for path in found if path.is_symlink() and not path.exists())
    if lost:
        named = ", ".join(quoted(str(_relative(path, root))) for path in lost[:4])
        more = ", ..." if len(lost) > 4 else ""
        links = "link" if len(lost) == 1 else "links"
        notes.append(f"{len(lost)} {links} to files that are not there left out: {named}{more}")
    return root, {path for path in found if path.is_file()}


def _absolute(path: Path) -> Path:
    """Return the absolute path without dots; links are kept, as an item has its name from the folder."""
    return Path(os.path.abspath(path))


def _table_rows(
    inputs: "InputsSection", folder: Path, given: str, place: Place, faults: Faults, notes: list[str]
) -> Rows:
    """Return ``(id, columns)`` of each row; columns named in ``paths`` become absolute paths or addresses."""
    rows: Rows = []
    try:
        file = _copies(inputs).of(given) if is_remote(given) else folder / given
    except EvenloadError as error:
        faults.append((place, one_line(error)))
        return rows
    base = given.rpartition("/")[0] if is_remote(given) else ""
    n_rows, nameless = 0, []
    try:
        for line, columns in _typed_lines(inputs, file, notes):
            n_rows += 1
            wrong = [columns] if isinstance(columns, str) else apply_types(columns, inputs.types)
            faults += [((f"{file.name} line {line}",), text) for text in wrong]
            if isinstance(columns, str):
                continue
            name = columns.pop(inputs.id, None)
            if not _text(name):
                nameless.append((line, sorted(columns)))
                continue
            for column in inputs.paths:
                if isinstance(columns.get(column), str) and not is_remote(columns[column]):
                    here = columns[column]
                    columns[column] = joined(base, here) if base else str((file.parent / here).resolve())
            rows.append((str(name), columns))
    except ConfigError as error:
        faults.append((place, one_line(error)))
        return rows
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        faults.append((place, f"cannot read {file}: {getattr(error, 'strerror', None) or error}"))
        return rows
    if nameless:
        faults.append(_nameless_fault(inputs, file, nameless, n_rows))
    if not rows and not faults:
        faults.append((place, f"there is no row in {file}"))
    return rows


def _nameless_fault(
    inputs: "InputsSection", file: Path, nameless: Sequence[tuple[int, list[str]]], n_rows: int
) -> tuple[Place, str]:
    """Return the fault of rows without an id; each of them has its line and its columns in ``nameless``."""
    lines, known = [str(line) for line, _ in nameless], nameless[0][1]
    where = f"line{'s' if len(lines) > 1 else ''} {', '.join([*lines[:5], '...'][: len(lines)])}"
    count = f" ({len(lines)} of {n_rows} rows)" if len(lines) > 1 else ""
    return (f"{file.name} {where}",), f"has no {_nearest(inputs.id, known)} (job.inputs.id){count}"


def _typed_lines(inputs: "InputsSection", file: Path, notes: list[str]) -> Iterable[Line]:
    """Yield the rows of a table with their line numbers; a text in place of a row says what is wrong."""
    if inputs.openai_batch is not None:
        return batch_rows(file, inputs.id)
    if file.suffix == ".parquet" or inputs.parquet is not None:
        return _parquet_rows(file)
    if file.suffix == ".jsonl" or inputs.jsonl is not None:
        return _json_lines(file, {column for column, kind in inputs.types.items() if kind == "text"})
    rows = list(_csv_lines(file))
    notes += [
        f"{file.name}: {note}" for note in type_columns(rows, {inputs.id, *inputs.paths, *inputs.types})
    ]
    return rows


def _parquet_rows(file: Path) -> Iterator[Line]:
    """Yield the rows of a parquet file without nulls; a row whose values JSON cannot hold is a fault."""
    parquet = require("pyarrow.parquet", extra="files", why="reading parquet files")
    arrow = require("pyarrow", extra="files", why="reading parquet files")
    number = 0
    try:
        with plain_file(file) as opened, parquet.ParquetFile(opened) as table:
            for batch in table.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    odd = [name for name, value in row.items() if not _is_json(value)]
                    filled = {name: value for name, value in row.items() if value is not None}
                    kinds = ", ".join(f"{name} ({type(row[name]).__name__})" for name in odd)
                    yield number, f"has values that JSON cannot hold: {kinds}" if odd else filled
    except arrow.ArrowException as error:
        raise OSError(f"it is no parquet file that can be read: {error}") from error


def _is_json(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(part) for key, part in value.items())
    if isinstance(value, list):
        return all(_is_json(part) for part in value)
    return value is None or isinstance(value, str | int | float | bool)


def _json_lines(file: Path, texts: set[str]) -> Iterator[Line]:
    """Yield the objects of a JSON-lines file with their line numbers; columns ``texts`` as written."""
    with io.TextIOWrapper(plain_file(file), "utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line, parse_float=_finite)
                if isinstance(row, dict) and not texts.isdisjoint(row):
                    written = json.loads(line, parse_float=str, parse_int=str)
                    row |= {name: written[name] for name in texts & row.keys() if _is_number(row[name])}
            except (ValueError, RecursionError) as error:
                yield number, f"is not JSON: {error}"
                continue
            yield number, row if isinstance(row, dict) else "is not a JSON object"


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{quoted(text)} is beyond a float; write it as a text")
    return number


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _csv_lines(file: Path) -> Iterator[Line]:
    """Yield the rows of a CSV file with a header, as texts. Empty fields are left out."""
    with io.TextIOWrapper(plain_file(file), "utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines)
        header = list(reader.fieldnames or ())
        twice = sorted({name for name in header if header.count(name) > 1})
        if twice:
            raise ConfigError(f"{file} names {', '.join(map(quoted, twice))} twice in its header")
        for row in reader:
            if None in row or None in row.values():
                yield reader.line_num, f"does not have the header's {len(header)} fields"
                continue
            yield reader.line_num, {key: text for key, text in row.items() if text != ""}


def _refuse_repeated(rows: Sequence[tuple[str, Mapping[str, Any]]], place: Place, faults: Faults) -> None:
    first: dict[str, int] = {}
    for number, (name, _) in enumerate(rows):
        if name in first:
            which = f"items {first[name] + 1} and {number + 1}"
            faults.append((place, f"the id {quoted(name)} is given twice, to {which}"))
        first.setdefault(name, number)


# --- types of columns ---------------------------------------------------------------------------------

_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def number_as_written(text: str) -> int | float | None:
    """Return the number whose text in Python is exactly ``text``; None if there is no such finite number."""
    for kind in (int, float):
        try:
            number = kind(text)
            if math.isfinite(number) and str(number) == text:
                return number
        except (ValueError, OverflowError):  # of more digits than Python reads, or than a float can hold
            continue
    return None


def type_columns(rows: Sequence[Line], texts: Collection[str]) -> list[str]:
    """Turn the columns of a text table that are numbers throughout into numbers, in place.

    texts  columns that are not looked at
    Returns a note for each column of numbers that stays text because one would be written differently.
    """
    fields: dict[str, list[dict[str, Any]]] = {}
    for row in (row for _, row in rows if isinstance(row, dict)):
        for column in row:
            fields.setdefault(column, []).append(row)
    notes = []
    for column, holders in fields.items():
        if column in texts:
            continue
        numbers = [number_as_written(row[column]) for row in holders]
        if None not in numbers:
            for row, number in zip(holders, numbers, strict=True):
                row[column] = number
        elif all(_DECIMAL.fullmatch(row[column]) for row in holders):
            odd = holders[numbers.index(None)][column]
            notes.append(
                f"column {quoted(column)} is text, as {quoted(odd)} would change as a number; "
                f"job.inputs.types: {{{column}: number}} reads numbers, {{{column}: text}} ends this note"
            )
    return notes


def apply_types(row: dict[str, Any], types: "Mapping[str, ColumnType]") -> list[str]:
    """Give a row's values their declared types, in place; return a sentence for each that has another."""
    faults = []
    for column, kind in types.items():
        value = row.get(column)
        if value is None:
            continue
        typed = _CONVERSIONS[kind](value)
        if typed is None:
            faults.append(f"{quoted(value)} in column {quoted(column)} is no {kind} (job.inputs.types)")
        row[column] = typed
    return faults


def _to_text(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, str | int | float) else None


def _to_number(value: Any) -> int | float | None:
    """Return the number; None of a text that is none, or is beyond a float: 12e4567 is not infinite."""
    if not isinstance(value, str):
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None
    text = value.strip()
    match = _DECIMAL.fullmatch(text)
    if match is None:
        return None
    try:
        number = int(text)
    except ValueError:
        number = float(text)
    is_zero = not match[1].strip("0.")
    return number if math.isfinite(number) and (number != 0 or is_zero) else None


def _to_boolean(value: Any) -> bool | None:
    return (
        value if isinstance(value, bool) else {"true": True, "false": False}.get(str(value).strip().lower())
    )


_CONVERSIONS = {"text": _to_text, "number": _to_number, "boolean": _to_boolean}
