"""Ethereum's ABI encoding of the value types that leaves are made of.

Source: the Solidity contract ABI specification, "Formal Specification of the Encoding". Supported are
address, bool, uintN, intN, bytesN, bytes and string.
"""

import re
from collections.abc import Sequence
from typing import Any

from evenload.errors import ConfigError, quoted
from evenload.merkle.scheme import from_hex

__all__ = ["encode"]

_TYPE = re.compile(r"(uint|int|bytes)([0-9]{0,3})")


def encode(types: Sequence[str], values: Sequence[Any]) -> bytes:
    """``values`` as a tuple of ``types``; bytes and addresses may be written in hexadecimal.

    Raises ConfigError on an unknown type or a value that is not of its type.
    """
    if len(types) != len(values):
        raise ConfigError(
            f"{len(values)} values for {len(types)} types", hint=f"the types are {quoted(list(types))}"
        )
    heads: list[bytes | None] = []
    tails: list[bytes] = []
    for kind, value in zip(types, values, strict=True):
        is_dynamic = kind in ("bytes", "string")
        heads.append(None if is_dynamic else _static(kind, value))
        tails.append(_dynamic(kind, value) if is_dynamic else b"")
    at, encoded = 32 * len(types), b""
    for head, tail in zip(heads, tails, strict=True):
        encoded += at.to_bytes(32, "big") if head is None else head
        at += len(tail)
    return encoded + b"".join(tails)


def _static(kind: str, value: Any) -> bytes:
    if kind == "address":
        return _fixed_bytes(value, 20, kind).rjust(32, b"\0")
    if kind == "bool":
        if not isinstance(value, bool):
            raise ConfigError(f"{quoted(value)} is no bool", hint="use true or false")
        return int(value).to_bytes(32, "big")
    match = _TYPE.fullmatch(kind)
    family, digits = (match[1], match[2]) if match else ("", "")
    size = int(digits or 256)
    if family == "bytes" and 1 <= size <= 32:
        return _fixed_bytes(value, size, kind).ljust(32, b"\0")
    if family in ("uint", "int") and not size % 8 and 8 <= size <= 256:
        return _integer(kind, value, size)
    raise ConfigError(
        f"type {quoted(kind)} is not supported", hint="use address, bool, uint256, bytes32, string ..."
    )


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
