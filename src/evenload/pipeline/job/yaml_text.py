"""Read YAML with what error messages need: the line of every key, and keys that are given twice.

``Origins`` makes errors of faults that are found later: each with its line, or the option that set its place.

Plain values follow the rules of YAML 1.2: ``1e-3`` is a number, and ``no``, ``1:30`` and ``2026-01-01`` are
texts, which YAML 1.1 reads as false, 90 and a date.
"""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evenload._optional import require
from evenload.errors import SpecError, quoted
from evenload.pipeline.json_values import is_plain

Place = tuple[str | int, ...]
Fault = tuple[Place, str]
_MOST_PLACES = 100_000
_MOST_DEPTH = 100
_TOO_DEEP = f"nested more than {_MOST_DEPTH} deep"
_TOO_MANY = f"it holds more than {_MOST_PLACES:,} values, with those of aliases; put items into a table"
# Errors of PyYAML's own code on odd files: !!bool x, !!timestamp x, 3000 brackets.
_ODD_ERRORS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def parse_yaml(text: str, source: str) -> tuple[Any, dict[Place, int], list[Fault]]:
    """Parse YAML: the document, the line (from 1) of each place in it, and the faults: keys given twice.

    Anchors and aliases work. Raises SpecError if the text is not YAML, if it has more than 100 000 places,
    with those that aliases stand for, if an alias stands for itself, or if it is nested more than 100 deep.
    """
    yaml = require("yaml", extra="jobs", why="reading job files")
    lines: dict[Place, int] = {}
    faults: list[Fault] = []
    try:
        loader = _loader()(text)
        root = loader.get_single_node()
        refused = _walk(root, (), lines, faults) if root is not None else None
        document = None if refused or root is None else loader.construct_document(root)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark is not None else "(file)"
        raise SpecError(source, [(where, getattr(error, "problem", None) or str(error))]) from error
    except _ODD_ERRORS as error:
        said = f"a value does not suit its tag: {type(error).__name__}: {error}"
        raise SpecError(source, [("(file)", said)]) from error
    if refused:
        raise SpecError(source, [("(file)", refused)])
    return document, lines, faults


_SCALARS = (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan", "-+.0123456789"),
)


@functools.cache
def _loader() -> Any:
    yaml = require("yaml", extra="jobs", why="reading job files")
    # The parser in C is ten times as fast; its composer would end the process where nesting is deep.
    bases = (yaml.composer.Composer, yaml.CSafeLoader) if yaml.__with_libyaml__ else (yaml.SafeLoader,)

    class Loader(*bases):  # pyrefly: ignore
        def __init__(self, text: str):
            bases[-1].__init__(self, text)
            yaml.composer.Composer.__init__(self)
            self.n_nodes = self.depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            self.n_nodes, self.depth = self.n_nodes + 1, self.depth + 1
            if self.n_nodes > 2 * _MOST_PLACES + 1:  # a key and its value are one place
                raise yaml.composer.ComposerError(None, None, _TOO_MANY, self.peek_event().start_mark)
            if self.depth > _MOST_DEPTH + 1:  # here, as a thousand open brackets take the parser a second
                raise yaml.composer.ComposerError(None, None, _TOO_DEEP, self.peek_event().start_mark)
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

    loader: Any = Loader
    kept = {"tag:yaml.org,2002:null", "tag:yaml.org,2002:merge"}
    loader.yaml_implicit_resolvers = {
        first: [rule for rule in rules if rule[0] in kept]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    _add_scalars(loader)
    loader.add_constructor("tag:yaml.org,2002:int", _integer)
    return loader


def _add_scalars(handler: Any) -> None:
    for name, pattern, first in _SCALARS:
        handler.add_implicit_resolver(f"tag:yaml.org,2002:{name}", re.compile(f"^({pattern})$"), list(first))


def dump_yaml(document: Any) -> str:
    """Return ``document`` as YAML that readers of versions 1.1 and 1.2 both read back as it was."""
    yaml = require("yaml", extra="jobs", why="writing job files")
    text = "\\U"
    for base in filter(None, (getattr(yaml, "CSafeDumper", None), yaml.SafeDumper)):
        if "\\U" in text:  # how that in C writes emoji
            dumper = type("Dumper", (base,), {})
            _add_scalars(dumper)  # beside the rules of 1.1: a text that either reads otherwise is quoted
            text = yaml.dump(document, Dumper=dumper, sort_keys=False, allow_unicode=True, width=100)
    return text


def _integer(loader: Any, node: Any) -> int:
    yaml = require("yaml", extra="jobs", why="reading job files")
    text = loader.construct_scalar(node)
    try:
        value = int(text, 16) if text.startswith("0x") else int(text)  # 010 is ten, not eight
    except ValueError as error:
        said = f"{quoted(text[:40])} is no integer, or one with too many digits"
        raise yaml.constructor.ConstructorError(None, None, said, node.start_mark) from error
    if not is_plain(value):
        said = f"{text[:40]}... has too many digits"
        raise yaml.constructor.ConstructorError(None, None, said, node.start_mark)
    return value


def _walk(
    node: Any, place: Place, lines: dict[Place, int], faults: list[Fault], above: frozenset[int] = frozenset()
) -> str | None:
    """Note lines and double keys below ``place``; returns a reason to refuse the whole file, or None.

    ``above`` are the nodes around this one; to meet one of them again would be an endless loop.
    """
    if len(lines) > _MOST_PLACES:
        return _TOO_MANY
    if id(node) in above:
        return f"line {node.start_mark.line + 1}: what is named there holds itself"
    if len(place) > _MOST_DEPTH:
        return f"line {node.start_mark.line + 1}: {_TOO_DEEP}"
    if node.id == "scalar":
        return None
    above = above | {id(node)}
    for below, line, value in _children(node, place):
        if node.id == "mapping" and below in lines:
            faults.append((below, f"is given twice, first on line {lines[below]}"))
        lines[below] = line
        if refused := _walk(value, below, lines, faults, above):
            return refused
    return None


def _children(node: Any, place: Place) -> Iterator[tuple[Place, int, Any]]:
    if node.id == "mapping":
        for key, value in node.value:
            yield (*place, str(key.value)), key.start_mark.line + 1, value
    else:
        for number, value in enumerate(node.value):
            yield (*place, number), value.start_mark.line + 1, value


@dataclass(frozen=True, slots=True)
class Origins:
    """The origins of a job: its file, the line of each place there, and the options that set others.

    Two jobs are equal wherever they were written.
    """

    source: str = field(default="job", compare=False)
    lines: Mapping[Place, int] = field(default_factory=dict, compare=False)
    options: Mapping[Place, str] = field(default_factory=dict, compare=False)

    def error(self, faults: Sequence[Fault]) -> SpecError:
        """Return an error that tells all faults by line; one that several places share comes once."""
        located = sorted((*self._of(place, text), dotted(place), text) for place, text in faults)
        shared: dict[tuple[str, str], list[str]] = {}
        for _, origin, place, text in located:
            shared.setdefault((origin, text), []).append(place)
        told = [
            (f"{', '.join(places)} ({origin})" if origin else ", ".join(places), text)
            for (origin, text), places in shared.items()
        ]
        return SpecError(self.source, told)

    def _of(self, place: Place, fault: str) -> tuple[int, str]:
        """Return the line (0 for none) of ``place`` and how it is named; ``fault`` is said of it."""
        for at, option in self.options.items():
            if place[: len(at)] == at or (at[: len(place)] == place and repr(at[-1]) in fault):
                return 0, option
        line = self._line_of(place)
        return line, f"line {line}" if line else ""

    def _line_of(self, place: Place) -> int:
        """Return the line of a place, or of the nearest place above it that the file has; 0 for none."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 0)


def dotted(place: Place) -> str:
    """Return a place as text, such as ``stages[1].when``."""
    return (
        "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
        or "(file)"
    )
