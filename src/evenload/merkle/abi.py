"""Ethereum's ABI encoding of the values that leaves are made of.

Source: the Solidity contract ABI specification, "Formal Specification of the Encoding". Supported are
address, bool, uintN, intN, bytesN, function, bytes, string, and arrays and tuples of them.
"""

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evenload.errors import ConfigError, quoted
from evenload.merkle.scheme import from_hex

_TYPE = re.compile(r"(uint|int|bytes)([0-9]{0,3})")
_ARRAY = re.compile(r"(.+)\[([1-9][0-9]{0,5}|)\]", re.DOTALL)
_MOST_LETTERS = 1000  # of a type: how deep it can be nested is limited with it
_MOST_DEPTH = 32


@dataclass(frozen=True, slots=True)
class _Type:
    """A type, parsed: a name alone, a tuple of ``parts``, or an array of its part; ``length`` None: any."""

    name: str
    is_dynamic: bool
    parts: tuple["_Type", ...] = ()
    length: int | None = None
    is_array: bool = False


def encode(types: Sequence[str], values: Sequence[Any]) -> bytes:
    """``values`` as a tuple of ``types``; bytes and addresses may be written in hexadecimal.

    Raises ConfigError on an unknown type or a value that is not of its type.
    """
    if len(types) != len(values):
        raise ConfigError(
            f"{len(values)} values for {len(types)} types", hint=f"the types are {quoted(list(types))}"
        )
    return _sequence([_parsed(kind) for kind in types], values)


@functools.lru_cache(256)
def _parsed(kind: str, depth: int = 0) -> _Type:
    """Parse ``address``, ``uint256[2][]`` or ``(address,bytes)``. Raises ConfigError."""
    if not isinstance(kind, str) or len(kind) > _MOST_LETTERS or depth > _MOST_DEPTH:
        raise _unknown(kind)
    if array := _ARRAY.fullmatch(kind):
        length = int(array[2]) if array[2] else None
        part = _parsed(array[1], depth + 1)
        return _Type(kind, part.is_dynamic or length is None, (part,), length, is_array=True)
    if not kind.startswith("("):
        return _Type(kind, kind in ("bytes", "string"))
    if not kind.endswith(")") or not kind[1:-1]:
        raise _unknown(kind)
    parts = tuple(_parsed(part, depth + 1) for part in split_types(kind[1:-1]))
    return _Type(kind, any(part.is_dynamic for part in parts), parts)


def split_types(text: str) -> list[str]:
    """The types in ``address,(bool,string)``: commas inside brackets do not part them."""
    parts, n_open = [""], 0
    for letter in text:
        n_open += (letter == "(") - (letter == ")")
        if letter == "," and not n_open:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _sequence(kinds: Sequence[_Type], values: Sequence[Any]) -> bytes:
    """The heads of the values, then what those of dynamic types point to."""
    encoded = [_encoded(kind, value) for kind, value in zip(kinds, values, strict=True)]
    if not any(kind.is_dynamic for kind in kinds):
        return b"".join(encoded)
    at = sum(32 if kind.is_dynamic else len(part) for kind, part in zip(kinds, encoded, strict=True))
    heads, tails = [], []
    for kind, part in zip(kinds, encoded, strict=True):
        heads.append(at.to_bytes(32, "big") if kind.is_dynamic else part)
        if kind.is_dynamic:
            tails.append(part)
            at += len(part)
    return b"".join(heads + tails)


def _encoded(kind: _Type, value: Any) -> bytes:
    if not kind.parts:
        return _dynamic(kind.name, value) if kind.is_dynamic else _static(kind.name, value)
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{quoted(value)} is no {kind.name[:80]}", hint="write a list of its values")
    if not kind.is_array:
        return _sequence(kind.parts, _exactly(len(kind.parts), kind, value))
    if kind.length is not None:
        return _sequence(kind.parts * kind.length, _exactly(kind.length, kind, value))
    return len(value).to_bytes(32, "big") + _sequence(kind.parts * len(value), value)


def _exactly(n: int, kind: _Type, values: Sequence[Any]) -> Sequence[Any]:
    if len(values) != n:
        raise ConfigError(f"{len(values)} values for {quoted(kind.name)}, which has {n}")
    return values


def _static(kind: str, value: Any) -> bytes:
    if kind == "address":
        return _fixed_bytes(value, 20, kind).rjust(32, b"\0")
    if kind == "bool":
        if not isinstance(value, bool):
            raise ConfigError(f"{quoted(value)} is no bool", hint="use true or false")
        return int(value).to_bytes(32, "big")
    if kind == "function":
        return _fixed_bytes(value, 24, kind).ljust(32, b"\0")
    match = _TYPE.fullmatch(kind)
    family, digits = (match[1], match[2]) if match else ("", "")
    size = int(digits or 256)
    if family == "bytes" and 1 <= size <= 32:
        return _fixed_bytes(value, size, kind).ljust(32, b"\0")
    if family in ("uint", "int") and not size % 8 and 8 <= size <= 256:
        return _integer(kind, value, size)
    raise _unknown(kind)


def _unknown(kind: str) -> ConfigError:
    hint = "use address, bool, uint256, bytes32, string, uint256[], (address,uint256) ..."
    return ConfigError(f"type {quoted(kind)} is not supported", hint=hint)


def _integer(kind: str, value: Any, size: int) -> bytes:
    try:
        number = int(value, 0) if isinstance(value, str) else value
    except ValueError:
        number = None
    if not isinstance(number, int) or isinstance(number, bool):
        raise ConfigError(f"{quoted(value)} is no {kind}", hint="write a whole number")
    least, most = (0, 2**size - 1) if kind.startswith("u") else (-(2 ** (size - 1)), 2 ** (size - 1) - 1)
    if not least <= number <= most:
        raise ConfigError(f"{quoted(number)} does not fit {kind}")
    return (number % 2**256).to_bytes(32, "big")


def _fixed_bytes(value: Any, size: int, kind: str) -> bytes:
    content = bytes(value) if isinstance(value, bytes | bytearray) else from_hex(value, kind, None)
    if len(content) != size:
        raise ConfigError(f"{quoted(value)} has {len(content)} bytes, {kind} has {size}")
    return content


def _dynamic(kind: str, value: Any) -> bytes:
    if kind == "string":
        if not isinstance(value, str):
            raise ConfigError(f"{quoted(value)} is no string")
        try:
            content = value.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"{quoted(value)} has half of a surrogate pair", hint="write UTF-8") from None
    else:
        content = bytes(value) if isinstance(value, bytes | bytearray) else from_hex(value, kind, None)
    return len(content).to_bytes(32, "big") + content.ljust(-(-len(content) // 32) * 32, b"\0")
