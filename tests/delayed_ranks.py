"""What ranks with planted delays measured: who came last to each collective, and what that cost others."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PROGRAM", "Measured", "measured"]

PROGRAM = Path(__file__).parents[1] / "examples" / "audit" / "delayed_ranks.py"


@dataclass(frozen=True)
class Measured:
    """Rank -> nanoseconds that others stood in collectives until it came; and the planted delays."""

    cost_ns: Counter[int]
    planned: list[tuple[int, str, float]]


def measured(folder: Path, world: int) -> Measured:
    """Read what the ranks of a run wrote down."""
    ranks = [json.loads((folder / f"rank{rank}-measured.json").read_text()) for rank in range(world)]
    cost_ns: Counter[int] = Counter()
    for came_ns in zip(*(rank["came_ns"] for rank in ranks), strict=True):
        last = max(came_ns)
        cost_ns[came_ns.index(last)] += sum(last - one for one in came_ns)
    return Measured(cost_ns, [tuple(one) for one in ranks[0]["planned"]])
