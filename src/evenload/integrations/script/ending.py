"""The words at a script's end: how even its pools were, how that compares, and what was left as it was."""

import json
import os
import sys
from collections import Counter
from functools import reduce
from operator import add
from typing import Any

from evenload._plain_text import plain, seconds_text
from evenload.integrations.script.measured_work import Figures, MeasuredWork, figures_of
from evenload.integrations.script.takeover import ScriptRun

LEAST_S = 0.05  # a shorter time of work says little about shares
MOST_NAMES = 3


def tell(run: ScriptRun, asked: dict[str, Any]) -> None:
    """Say on standard error how the script went, and write it to the file that was asked for."""
    ended = facts(run)
    if asked.get("out"):
        with open(asked["out"], "w", encoding="utf-8") as file:
            json.dump(ended, file, indent=1)
    if asked.get("quiet"):
        return
    said = json.dumps(ended) if asked.get("json") else text(ended)
    try:
        print(said, file=sys.__stderr__, flush=True)  # noqa: T201
    except (OSError, ValueError):
        pass  # nobody reads it


def facts(run: ScriptRun) -> dict[str, Any]:
    """Return what is known of the script's pools, for ``json.dumps``."""
    works = [work for work in run.works if work.n_items]
    for work in works:
        work.pause()
    names: Counter[str] = reduce(add, (work.names for work in works), Counter())
    total = reduce(add, (_pool_figures(work) for work in works), Figures())
    busy = [work.busy_s[slot] for work in works for slot in work.slots]
    mean_s = sum(busy) / len(busy) if busy else 0.0
    return {
        "schema": 1,
        "pid": os.getpid(),
        "pools": [{"kind": one.kind, "workers": len(one.slots), "items": one.n_items} for one in works],
        "items": sum(work.n_items for work in works),
        "functions": dict(names.most_common()),
        "wall_s": round(total.wall_s, 6),
        "bound_s": round(total.bound_s, 6),
        "ratio": round(total.wall_s / total.bound_s, 4) if total.bound_s else None,
        "without_s": round(total.plain_s, 6),
        "imbalance": round(max(busy) / mean_s, 4) if len(works) == 1 and mean_s else None,
        "busy_s": [{slot: round(one.busy_s[slot], 6) for slot in one.slots} for one in works],
        "workers_lost": sum(work.n_deaths for work in works),
        "items_untold": sum(work.n_untold for work in works),
        "left": dict(run.left),
    }


def _pool_figures(work: MeasuredWork) -> Figures:
    return reduce(add, (figures_of(one, work.slots) for one in work.stretches), Figures())


def text(ended: dict[str, Any]) -> str:
    """Say the facts in words."""
    lines = [_headline(ended)]
    if ended["wall_s"] >= LEAST_S and ended["ratio"]:
        lines.append(
            f"  the work took {ended['ratio']:.2f}x the least possible, {seconds_text(ended['bound_s'])}; "
            f"dealt as the script has it: about {seconds_text(ended['without_s'])}"
        )
    lost = ended["workers_lost"]
    if lost:
        lines.append(f"  {lost} worker{'s' * (lost != 1)} died, and the script went on")
    lines += [f"  left as it was: {plain(what)}" for what in ended["left"]]
    return "\n".join(lines)


def _headline(ended: dict[str, Any]) -> str:
    if not ended["items"]:
        return "evenload: this script gave no work to a pool that could be taken over"
    names = list(ended["functions"])
    shown = ", ".join(names[:MOST_NAMES]) + (", ..." if len(names) > MOST_NAMES else "")
    workers = max(one["workers"] for one in ended["pools"])
    items = ended["items"]
    return (
        f"evenload: {items} item{'s' * (items != 1)} of {plain(shown)} "
        f"in {seconds_text(ended['wall_s'])} on {workers} worker{'s' * (workers != 1)}"
    )
