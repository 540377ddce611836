"""``claim``: a certificate as a document that travels, checked before it is given away."""

import json
import math
from fractions import Fraction
from typing import Any

from evenload.certificate import FORMAT, VERSION, Refused, check, parse
from evenload.errors import ConfigError

__all__ = ["claim", "rounded_down", "rounded_up", "text_of"]


def claim(
    kind: str, name: str, achieved: Fraction | int, bound: Fraction | int, evidence: dict[str, Any]
) -> dict[str, Any]:
    """Return the document that ``evenload.certificate`` checks, as an object for ``json.dumps``.

    kind      run | plan | routing | placement
    achieved  what was reached: nanoseconds, or the load of the busiest GPU; bound: what nobody can be below

    Raises ConfigError if the evidence does not prove it, or there is too much of it.
    """
    page: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "kind": kind,
        "name": name,
        "claim": {"achieved": rounded_up(achieved), "bound": rounded_down(bound), "ratio": 1},
        "evidence": evidence,
    }
    numbers = page["claim"]
    if numbers["bound"] > 0:
        numbers["ratio"] = rounded_up(exact(numbers["achieved"]) / exact(numbers["bound"]))
    try:
        check(parse(text_of(page).encode()))
    except Refused as error:
        raise ConfigError(
            f"this {kind} cannot be certified: {error}",
            hint="certify what has finished, with work that was measured",
        ) from None
    return page


def text_of(page: dict[str, Any]) -> str:
    """Return a certificate as the text of its file."""
    return json.dumps(page, separators=(",", ":"), allow_nan=False) + "\n"


def exact(number: float) -> Fraction:
    """Return the decimal that is written for ``number``, which is what a reader of the file sees."""
    return Fraction(repr(number))


def rounded_up(value: Fraction | int) -> float:
    """Return the least number with nine digits after the point, or fewer, that is not below ``value``."""
    return _rounded(value, math.ceil(value * 10**9), math.inf)


def rounded_down(value: Fraction | int) -> float:
    """Return the largest such number that is not above ``value``."""
    return _rounded(value, math.floor(value * 10**9), -math.inf)


def _rounded(value: Fraction | int, billionths: int, towards: float) -> float:
    if billionths % 10**9 == 0:
        return billionths // 10**9
    found = billionths / 10**9
    while (exact(found) - value) * (1 if towards > 0 else -1) < 0:
        found = math.nextafter(found, towards)
    return found
