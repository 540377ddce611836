"""Parse and test conditions, such as ``score >= 7 and category in ["physics", "social"]``; no code is run.

    or   := and ("or" and)*           and := not ("and" not)*          not := "not" not | test
    test := value [("<" | "<=" | ">" | ">=" | "==" | "!=" | "in" | "not" "in") value]
    value := number | "text" | true | false | null | name | "[" value, ... "]" | "(" or ")"

There are no calls, no attributes and no arithmetic: a condition always ends, takes microseconds, and sees
only the values of its item.
"""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from evenload.errors import ConfigError, quoted

_TOKEN = re.compile(
    r"\s*(?:(?P<number>-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?)"
    r"|(?P<text>\"[^\"\\]*\"|'[^'\\]*')"
    r"|(?P<name>[^\W0-9]\w*)"
    r"|(?P<sign><=|>=|==|!=|<|>|\(|\)|\[|\]|,))"
)
_ORDER: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_COMPARES = (*_ORDER, "==", "!=", "in", "not in")
_CONSTANTS = {"true": True, "false": False, "null": None}
_MOST_LETTERS = 1000
_MOST_DEPTH = 30

Term = Callable[[Mapping[str, Any]], Any]  # what a part of a condition is for an item with these values


@dataclass(frozen=True, slots=True)
class Condition:
    """A parsed condition. ``names``: the values of the item that it looks at."""

    text: str
    names: frozenset[str]
    _term: Term = field(compare=False, repr=False)

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Return whether it is true of an item with these values; a comparison of size with null is false.

        Raises ConfigError if a value is missing, or a text is compared with a number by size.
        """
        return bool(self.value(values))

    def value(self, values: Mapping[str, Any]) -> Any:
        """Return what it is for an item with these values: of a name alone its value. Raises as ``holds``."""
        return self._term(values)


def parse_condition(text: str) -> Condition:
    """Parse a condition. Raises ConfigError that points at the letter where it is wrong."""
    if len(text) > _MOST_LETTERS:
        raise ConfigError(f"a condition of {len(text)} letters", hint=f"use at most {_MOST_LETTERS}")
    parser = _Parser(text)
    term = parser.parse_or(0)
    if parser.token[0] != "end":
        raise parser.error("'and', 'or' or the end")
    return Condition(text, frozenset(parser.names), term)


class _Parser:
    """A recursive-descent parser: one method for each rule of the grammar, one token ahead."""

    def __init__(self, text: str):
        self.text, self.at, self.names = text, 0, set[str]()
        self.token: tuple[str, str] = ("end", "")
        self.start = 0
        self.advance()

    def advance(self) -> str:
        """Return the current token's text and move to the next token."""
        taken, self.start = self.token[1], self.at
        match = _TOKEN.match(self.text, self.at)
        if match is not None and match.lastgroup:
            self.token, self.at = (match.lastgroup, match[match.lastgroup]), match.end()
        elif self.text[self.at :].strip():
            self.token = ("odd", self.text[self.at :].strip()[0])
        else:
            self.token = ("end", "")
        return taken

    def error(self, wanted: str) -> ConfigError:
        """Return the error that ``wanted`` is expected at the current token."""
        found = f"{quoted(self.token[1])}" if self.token[0] != "end" else "the end"
        place = len(self.text) - len(self.text[self.start :].lstrip())
        return ConfigError(
            f"condition {quoted(self.text, 200)}: {wanted} is expected at letter {place + 1}, not {found}",
            hint='write for example score >= 7 and category in ["physics", "social"]',
        )

    def parse_or(self, depth: int) -> Term:
        _check_depth(depth)
        return self.parse_chain("or", self.parse_and, depth)

    def parse_and(self, depth: int) -> Term:
        return self.parse_chain("and", self.parse_not, depth)

    def parse_chain(self, word: str, parse_part: Callable[[int], Term], depth: int) -> Term:
        """Parse parts that are joined by ``word``."""
        parts = [parse_part(depth)]
        while self.token == ("name", word):
            self.advance()
            parts.append(parse_part(depth))
        settled = any if word == "or" else all
        return parts[0] if len(parts) == 1 else lambda values: settled(part(values) for part in parts)

    def parse_not(self, depth: int) -> Term:
        if self.token == ("name", "not"):
            self.advance()
            _check_depth(depth + 1)
            part = self.parse_not(depth + 1)
            return lambda values: not part(values)
        left = self.parse_value(depth)
        sign = self.token[1]
        if self.token == ("name", "not"):
            self.advance()
            if self.token != ("name", "in"):
                raise self.error("'in'")
            sign = "not in"
        if sign not in _COMPARES or self.token[0] not in ("sign", "name"):
            return left
        self.advance()
        right = self.parse_value(depth)
        return lambda values: _compare(sign, left(values), right(values), self.text)

    def parse_value(self, depth: int) -> Term:
        kind, text = self.token
        if kind == "number":
            self.advance()
            return _always(float(text) if re.search(r"[.eE]", text) else int(text))
        if kind == "text":
            return _always(self.advance()[1:-1])
        if kind == "name" and text not in ("and", "or", "not", "in"):
            self.advance()
            if text in _CONSTANTS:
                return _always(_CONSTANTS[text])
            self.names.add(text)
            return lambda values: self.look_up(text, values)
        if kind == "sign" and text == "(":
            self.advance()
            inner = self.parse_or(depth + 1)
            self.expect(")")
            return inner
        if kind == "sign" and text == "[":
            return self.parse_list(depth)
        raise self.error("a value")

    def parse_list(self, depth: int) -> Term:
        _check_depth(depth + 1)
        self.advance()
        parts: list[Term] = []
        while self.token != ("sign", "]"):
            parts.append(self.parse_value(depth + 1))
            if self.token != ("sign", ","):
                break
            self.advance()
        self.expect("]")
        return lambda values: [part(values) for part in parts]

    def look_up(self, name: str, values: Mapping[str, Any]) -> Any:
        if name not in values:
            known = ", ".join(sorted(values)) or "none"
            raise ConfigError(
                f"condition {quoted(self.text, 200)}: the item has no {quoted(name)}", hint=f"values: {known}"
            )
        return values[name]

    def expect(self, sign: str) -> None:
        if self.token != ("sign", sign):
            raise self.error(repr(sign))
        self.advance()


def _check_depth(depth: int) -> None:
    if depth > _MOST_DEPTH:
        raise ConfigError(f"a condition nested more than {_MOST_DEPTH} deep", hint="write it flat")


def _always(value: Any) -> Term:
    return lambda _values: value


def _compare(sign: str, first: Any, second: Any, text: str) -> bool:
    if sign in ("==", "!="):
        return (first == second) == (sign == "==")
    try:
        if sign in ("in", "not in"):
            return (first in second) == (sign == "in")
        return first is not None and second is not None and _ORDER[sign](first, second)
    except TypeError as error:
        kinds = f"{type(first).__name__} {sign} {type(second).__name__}"
        raise ConfigError(
            f"condition {quoted(text, 200)} compares {kinds}",
            hint="compare numbers with numbers; job.inputs.types: {COLUMN: number} makes a column numbers",
        ) from error
