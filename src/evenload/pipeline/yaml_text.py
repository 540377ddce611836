"""YAML as people expect it, with what error messages need: the line of every key, and keys given twice.

Plain values are read by the rules of YAML 1.2: ``1e-3`` is a number, and ``no``, ``1:30`` and ``2026-01-01``
are texts, where YAML 1.1 makes false, 90 and a date of them.
"""

import functools
import re
from typing import Any

from evenload._optional import require
from evenload.errors import SpecError

__all__ = ["Place", "dump_yaml", "parse_yaml"]

Place = tuple[str | int, ...]
_MOST_PLACES = 100_000


def parse_yaml(text: str, source: str) -> tuple[Any, dict[Place, int], list[tuple[Place, str]]]:
    """The document, the line (from 1) of each place in it, and the faults: keys given twice.

    Anchors and aliases work; a file whose aliases stand for more than 100 000 places is refused.
    Raises SpecError if the text is not YAML.
    """
    yaml = require("yaml", extra="yaml", why="reading job files")
    try:
        root = yaml.compose(text, Loader=_loader())
        document = yaml.load(text, Loader=_loader())
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


_SCALARS = (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan", "-+.0123456789"),
)


@functools.cache
def _loader() -> Any:
    yaml = require("yaml", extra="yaml", why="reading job files")
    loader = type("Loader", (yaml.SafeLoader,), {})
    kept = {"tag:yaml.org,2002:null", "tag:yaml.org,2002:merge"}
    loader.yaml_implicit_resolvers = {
        first: [rule for rule in rules if rule[0] in kept]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    _add_scalars(loader)
    loader.add_constructor("tag:yaml.org,2002:int", lambda one, node: _integer(one.construct_scalar(node)))
    return loader


def _add_scalars(handler: Any) -> None:
    for name, pattern, first in _SCALARS:
        handler.add_implicit_resolver(f"tag:yaml.org,2002:{name}", re.compile(f"^({pattern})$"), list(first))


def dump_yaml(document: Any) -> str:
    """``document`` as YAML that readers of 1.1 and of 1.2 both read back as it was."""
    yaml = require("yaml", extra="yaml", why="writing job files")
    dumper = type("Dumper", (yaml.SafeDumper,), {})
    _add_scalars(dumper)  # beside those of 1.1: a text is quoted if either would take it for something else
    return yaml.dump(document, Dumper=dumper, sort_keys=False, allow_unicode=True, width=100)


def _integer(text: str) -> int:
    return int(text, 16) if text.startswith("0x") else int(text)  # 010 is ten, not eight


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
