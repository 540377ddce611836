"""Conditions of a job file, such as ``score >= 7 and category in ["physics", "social"]``; nothing is run.

    or   := and ("or" and)*           and := not ("and" not)*          not := "not" not | test
    test := value [("<" | "<=" | ">" | ">=" | "==" | "!=" | "in" | "not" "in") value]
    value := number | "text" | true | false | null | name | "[" value, ... "]" | "(" or ")"

There are no calls, no attributes and no arithmetic: a condition ends, costs next to nothing, and can only
look at the values of its item.
"""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from evenload.errors import ConfigError

__all__ = ["Condition", "parse_condition"]

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

Node = tuple[str, Any, Any]


@dataclass(frozen=True, slots=True)
class Condition:
    """``names`` are the values that it looks at."""

    text: str
    tree: Node
    names: frozenset[str]

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Is it true of an item with these values? A comparison of size with null is false.

        Raises ConfigError if a value is missing, or a text is compared with a number by size.
        """
        return bool(_value(self.tree, values, self.text))


def parse_condition(text: str) -> Condition:
    """Raises ConfigError that points at what is wrong."""
    if len(text) > _MOST_LETTERS:
        raise ConfigError(f"a condition of {len(text)} letters", hint=f"use at most {_MOST_LETTERS}")
    parser = _Parser(text)
    tree = parser.either(0)
    if parser.token[0] != "end":
        raise parser.refused("'and', 'or' or the end")
    return Condition(text, tree, frozenset(parser.names))


class _Parser:
    def __init__(self, text: str):
        self.text, self.at, self.names = text, 0, set[str]()
        self.token: tuple[str, str] = ("end", "")
        self.start = 0
        self.advance()

    def advance(self) -> str:
        """Take the present token, look at the next."""
        taken, self.start = self.token[1], self.at
        match = _TOKEN.match(self.text, self.at)
        if match is not None and match.lastgroup:
            self.token, self.at = (match.lastgroup, match[match.lastgroup]), match.end()
        elif self.text[self.at :].strip():
            self.token = ("odd", self.text[self.at :].strip()[0])
        else:
            self.token = ("end", "")
        return taken

    def refused(self, wanted: str) -> ConfigError:
        found = f"{self.token[1]!r}" if self.token[0] != "end" else "the end"
        place = (
            len(self.text[: self.start])
            + len(self.text[self.start :])
            - len(self.text[self.start :].lstrip())
        )
        return ConfigError(
            f"condition {self.text!r}: {wanted} is expected at letter {place + 1}, not {found}",
            hint='write for example score >= 7 and category in ["physics", "social"]',
        )

    def either(self, depth: int) -> Node:
        if depth > _MOST_DEPTH:
            raise ConfigError(f"a condition nested more than {_MOST_DEPTH} deep", hint="write it flat")
        tree = self.both(depth)
        while self.token == ("name", "or"):
            self.advance()
            tree = ("or", tree, self.both(depth))
        return tree

    def both(self, depth: int) -> Node:
        tree = self.negated(depth)
        while self.token == ("name", "and"):
            self.advance()
            tree = ("and", tree, self.negated(depth))
        return tree

    def negated(self, depth: int) -> Node:
        if self.token == ("name", "not"):
            self.advance()
            if depth >= _MOST_DEPTH:
                raise ConfigError(f"a condition nested more than {_MOST_DEPTH} deep", hint="write it flat")
            return ("not", self.negated(depth + 1), None)
        left = self.operand(depth)
        sign = self.token[1]
        if self.token == ("name", "not"):
            self.advance()
            if self.token != ("name", "in"):
                raise self.refused("'in'")
            sign = "not in"
        if sign not in _COMPARES or self.token[0] not in ("sign", "name"):
            return left
        self.advance()
        return (sign, left, self.operand(depth))

    def operand(self, depth: int) -> Node:
        kind, text = self.token
        if kind == "number":
            self.advance()
            return ("value", float(text) if re.search(r"[.eE]", text) else int(text), None)
        if kind == "text":
            return ("value", self.advance()[1:-1], None)
        if kind == "name" and text not in ("and", "or", "not", "in"):
            self.advance()
            if text in _CONSTANTS:
                return ("value", _CONSTANTS[text], None)
            self.names.add(text)
            return ("name", text, None)
        if kind == "sign" and text == "(":
            self.advance()
            tree = self.either(depth + 1)
            self.closed(")")
            return tree
        if kind == "sign" and text == "[":
            return self.listed(depth)
        raise self.refused("a value")

    def listed(self, depth: int) -> Node:
        if depth >= _MOST_DEPTH:
            raise ConfigError(f"a condition nested more than {_MOST_DEPTH} deep", hint="write it flat")
        self.advance()
        parts: list[Node] = []
        while self.token != ("sign", "]"):
            parts.append(self.operand(depth + 1))
            if self.token != ("sign", ","):
                break
            self.advance()
        self.closed("]")
        return ("list", tuple(parts), None)

    def closed(self, sign: str) -> None:
        if self.token != ("sign", sign):
            raise self.refused(repr(sign))
        self.advance()


def _value(node: Node, values: Mapping[str, Any], text: str) -> Any:
    kind, left, right = node
    if kind == "value":
        return left
    if kind == "name":
        if left not in values:
            known = ", ".join(sorted(values)) or "none"
            raise ConfigError(f"condition {text!r}: the item has no {left!r}", hint=f"values: {known}")
        return values[left]
    if kind == "list":
        return [_value(part, values, text) for part in left]
    if kind == "not":
        return not _value(left, values, text)
    first = _value(left, values, text)
    if kind in ("and", "or"):
        is_settled = bool(first) == (kind == "or")
        return bool(first) if is_settled else bool(_value(right, values, text))
    return _compared(kind, first, _value(right, values, text), text)


def _compared(sign: str, first: Any, second: Any, text: str) -> bool:
    if sign in ("==", "!="):
        return (first == second) == (sign == "==")
    try:
        if sign in ("in", "not in"):
            return (first in second) == (sign == "in")
        return first is not None and second is not None and _ORDER[sign](first, second)
    except TypeError as error:
        kinds = f"{type(first).__name__} {sign} {type(second).__name__}"
        raise ConfigError(
            f"condition {text!r} compares {kinds}", hint="compare numbers with numbers"
        ) from error
