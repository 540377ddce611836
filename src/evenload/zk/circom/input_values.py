"""The inputs of a circuit as its users write them: JSON of signals, each a number, a list or a bus."""

import re
from collections.abc import Mapping
from typing import Any

from evenload._bounded_json import parse_json
from evenload.errors import FormatError, printable, quoted
from evenload.gpu.field import FR

MOST_BYTES = 1 << 28
MOST_DEPTH = 64
EXACT = 1 << 53  # JavaScript rounds larger integers that are no text
_INTEGER = re.compile(r"-?[0-9]{1,400}|0[xX][0-9a-fA-F]{1,400}")


def parse_inputs(text: str | bytes, source: str = "the inputs") -> dict[str, list[int]]:
    """The values of each signal, in the order in which circom counts them, each in [0, r).

    A bus is an object of its signals, an array of buses a list of objects: ``{"p": {"x": 1}}`` gives ``p.x``,
    and ``{"s": [{"w": [1, 2]}]}`` gives ``s[0].w``: circom's names, which may be given as such.
    Numbers are integers, or text in decimal or hexadecimal ("0x..."), reduced modulo r as snarkjs does.
    Raises FormatError for text that is no such JSON or has more than 256 MiB, naming the signal.
    """
    given, source = parse_json(text, source, MOST_BYTES), printable(source)
    if not isinstance(given, dict):
        raise FormatError(
            f"{source}: must be a JSON object of signals", hint='write {"signal": "1", "other": ["2", "3"]}'
        )
    return values_of(given, source)


def values_of(given: Mapping[str, Any], source: str = "the inputs") -> dict[str, list[int]]:
    """The values of each signal, as of ``parse_inputs``, of JSON that was parsed already."""
    found: dict[str, list[int]] = {}
    for name, value in given.items():
        _add_signals(found, name, value, source)
    return found


def _add_signals(found: dict[str, list[int]], name: str, value: Any, source: str, depth: int = 0) -> None:
    where = f"{source}: signal {quoted(name)}"
    leaves = [] if isinstance(value, dict) else _flat(value, where)
    n_objects = sum(isinstance(one, dict) for one in leaves)
    if isinstance(value, dict) or n_objects:
        if depth > MOST_DEPTH:
            raise FormatError(f"{where}: objects nested deeper than {MOST_DEPTH}")
        if n_objects < len(leaves):
            raise FormatError(f"{where}: numbers among objects", hint="give one object for each bus")
        is_bus = isinstance(value, dict)
        parts = (
            ((f".{k}", v) for k, v in value.items())
            if is_bus
            else ((f"[{k}]", v) for k, v in enumerate(value))
        )
        for part, below in parts:
            _add_signals(found, f"{name}{part}", below, source, depth + 1)
        return
    if name in found:
        raise FormatError(
            f"{where} is given twice", hint="give it once, inside of its bus or by its whole name"
        )
    found[name] = [_number(one, where) for one in leaves]


def signal_hash(name: str) -> tuple[int, int]:
    """(high, low) 32 bits of the FNV-1a hash that circom calls a signal by."""
    value = 0xCBF29CE484222325
    for letter in name:
        value = (value ^ ord(letter)) * 0x100000001B3 % 2**64
    return value >> 32, value & 0xFFFFFFFF


def _flat(value: Any, where: str, depth: int = 0) -> list[Any]:
    if not isinstance(value, list):
        return [value]
    if depth >= MOST_DEPTH:
        raise FormatError(f"{where}: lists nested deeper than {MOST_DEPTH}")
    found = []
    for one in value:
        found += _flat(one, where, depth + 1) if isinstance(one, list) else (one,)
    return found


def _number(value: Any, where: str) -> int:
    if type(value) is int and abs(value) > EXACT:
        raise FormatError(
            f"{where}: {quoted(value)} is too large for a number of JSON, which JavaScript would round",
            hint='write it as text: "..."',
        )
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        value = int(value, 16 if value[:2] in ("0x", "0X") else 10)
    if type(value) is not int:
        raise FormatError(
            f"{where}: {quoted(value)} is no integer",
            hint='write an integer, "12" or "0x1f", or lists of them',
        )
    return value % FR.modulus
