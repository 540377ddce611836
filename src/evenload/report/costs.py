"""What a run costs: its devices by the hour, what they draw, and the answers of servers. Pure; all is told.

    {"currency": "USD", "hour": 10.0, "watts": 2800.0, "kwh": 0.3, "outputs": {"ask": "cost"}}

``hour`` and ``watts`` are those of all devices together; ``outputs`` name the output of a stage with what an
item's answer cost.
"""

import math
from collections.abc import Mapping
from typing import Any

from evenload._plain_text import number_text


def cost_of(
    told: Any, seconds: float, answers: float = 0.0, n_failed: int = 0, n_untold: int = 0
) -> dict[str, Any]:
    """Return currency, total, devices, energy and answers, and the kWh; {} where nothing was told.

    told      the facts above, as a file may have them
    answers   what answers cost, of items that are done
    n_failed  items that failed where servers are asked: their answers, paid or not, are in no sum
    n_untold  answers of which the server did not say what they took
    """
    if not isinstance(told, Mapping):
        return {}
    hour, watts, price = (amount_of(told.get(name)) for name in ("hour", "watts", "kwh"))
    devices, kwh = hour * seconds / 3600, watts * seconds / 3_600_000
    parts = {"devices": devices, "energy": kwh * price, "answers": answers}
    total = sum(parts.values())
    cost = {"currency": str(told.get("currency", ""))[:8], "total": total, **parts, "kwh": kwh}
    counts = {"of failed items": n_failed, "without usage": n_untold}
    if lacking := [f"{n} answer{'s' * (n > 1)} {which}" for which, n in counts.items() if n]:
        cost["left_out"] = f"{' and '.join(lacking)} not in it"
    return cost


def cost_text(cost: Mapping[str, Any]) -> str:
    """Return "0.42 USD (devices 0.31, answers 0.11), 0.12 kWh"; "" where nothing costs anything.

    If answers are left out of the sum, it is "at least" so much.
    """
    parts = [
        f"{name} {number_text(cost[name])}" for name in ("devices", "energy", "answers") if cost.get(name)
    ]
    left_out = cost.get("left_out")
    shown = [*(parts if len(parts) > 1 else []), *([left_out] if left_out else [])]
    apart = f" ({', '.join(shown)})" if shown else ""
    least = "at least " if left_out else ""
    money = [f"{least}{number_text(cost['total'])} {cost['currency']}{apart}"] if parts or left_out else []
    return ", ".join([*money, *([f"{number_text(cost['kwh'])} kWh"] if cost.get("kwh") else [])])


def amount_of(value: Any) -> float:
    """Return a number that may be an amount; 0 for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) and 0 <= value < 1e15 else 0.0
