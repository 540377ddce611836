"""YAML with what error messages need: the line of every key, and keys that are given twice."""

from typing import Any

from evenload._optional import require
from evenload.errors import SpecError

__all__ = ["Place", "parse_yaml"]

Place = tuple[str | int, ...]
_MOST_PLACES = 100_000


def parse_yaml(text: str, source: str) -> tuple[Any, dict[Place, int], list[tuple[Place, str]]]:
    """The document, the line (from 1) of each place in it, and the faults: keys given twice.

    Anchors and aliases work; a file whose aliases stand for more than 100 000 places is refused.
    Raises SpecError if the text is not YAML.
    """
    yaml = require("yaml", extra="yaml", why="reading job files")
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark is not None else "(file)"
        raise SpecError(source, [(where, getattr(error, "problem", None) or str(error))]) from error
    lines: dict[Place, int] = {}
    faults: list[tuple[Place, str]] = []
    if root is not None and not _walk(root, (), lines, faults):
        raise SpecError(
            source, [("(file)", f"stands for more than {_MOST_PLACES} places; use fewer aliases")]
        )
    return document, lines, faults


def _walk(node: Any, place: Place, lines: dict[Place, int], faults: list[tuple[Place, str]]) -> bool:
    """Note lines and double keys below ``place``; False as soon as there are too many places."""
    if len(lines) > _MOST_PLACES:
        return False
    if node.id == "mapping":
        for key, value in node.value:
            below = (*place, str(key.value))
            if below in lines:
                faults.append((below, f"is given twice, first on line {lines[below]}"))
            lines[below] = key.start_mark.line + 1
            if not _walk(value, below, lines, faults):
                return False
    elif node.id == "sequence":
        for number, value in enumerate(node.value):
            lines[*place, number] = value.start_mark.line + 1
            if not _walk(value, (*place, number), lines, faults):
                return False
    return True
