"""The words at a script's end: how even its pools were, how that compares, and what was left as it was."""

import contextlib
import json
import os
import sys
from collections import Counter
from typing import Any

from evenload._plain_text import plain, seconds_text
from evenload.integrations.script.takeover import ScriptRun

LEAST_S = 0.05  # a shorter time of work says little about shares
MOST_NAMES = 3


def tell(run: ScriptRun, asked: dict[str, Any]) -> None:
    """Say on standard error how the script went, and write it to the file that was asked for."""
    if run.notes:
        from evenload._private_files import Path, plain_file
        from evenload.integrations.script.observe import works_of

        with plain_file(Path(run.notes)) as lines:
            run.works += works_of(lines)
        os.unlink(run.notes)
    ended = facts(run)
    if asked.get("out"):
        from evenload._private_files import ConfigError, Path, write_named
        from evenload._terminal import print_line

        try:
            write_named(Path(asked["out"]), json.dumps(ended, indent=1) + "\n", "-o")
        except ConfigError as error:
            print_line(f"error: {error.message}")
    if not asked.get("quiet") and sys.__stderr__ is not None:  # else it would be printed to standard output
        with contextlib.suppress(OSError, ValueError):  # nobody reads it
            print(json.dumps(ended) if asked.get("json") else text(ended), file=sys.__stderr__, flush=True)


def facts(run: ScriptRun) -> dict[str, Any]:
    """Return what is known of the script's pools, for ``json.dumps``."""
    works = [work for work in run.works if work.n_items or work.n_put]
    names: Counter[str] = sum((work.names for work in works), Counter())
    each = [work.seconds() for work in works]
    wall_s, bound_s, plain_s = (round(sum(column), 6) for column in zip((0.0,) * 3, *each, strict=True))
    ratio = None
    if works:
        from evenload.balance.bound import ratio_to

        ratio = ratio_to(bound_s, wall_s)
    return {
        "schema": 1,
        "pools": [{"kind": one.kind, "workers": len(one.slots), "items": one.n_items} for one in works],
        "observed": bool(run.notes),
        "items": sum(work.n_items for work in works),
        "functions": dict(names.most_common()),
        "wall_s": wall_s,
        "bound_s": bound_s,
        "ratio": ratio,
        "without_s": plain_s,
        "busy_s": [{slot: round(one.busy_s[slot], 6) for slot in one.slots} for one in works],
        "workers_lost": sum(work.n_deaths for work in works),
        "items_untold": sum(work.n_untold for work in works),
        "left": dict(run.left),
    }


def text(ended: dict[str, Any]) -> str:
    """Say the facts in words."""
    items, lost = ended["items"], ended["workers_lost"]
    if items:
        names = list(ended["functions"])
        shown = ", ".join(names[:MOST_NAMES]) + ", ..." * (len(names) > MOST_NAMES)
        workers = max(one["workers"] for one in ended["pools"])
        lines = [
            f"evenload: {items} item{'s' * (items != 1)} of {plain(shown)} in "
            f"{seconds_text(ended['wall_s'])} on {workers} worker{'s' * (workers != 1)}"
        ]
    elif ended["pools"]:
        lines = ["evenload: no call that this script gave to a pool has ended"]
    else:
        lines = ["evenload: this script gave no work to a pool that could be taken over"]
    if ended["wall_s"] >= LEAST_S and ended["ratio"]:
        took = f"  the work took {ended['ratio']:.2f}x the least possible, {seconds_text(ended['bound_s'])}"
        without = f"; dealt as the script has it: about {seconds_text(ended['without_s'])}"
        lines.append(took + without * (not ended["observed"]))
    if lost:
        lines.append(f"  {lost} worker{'s' * (lost != 1)} died, and the script went on")
    return "\n".join([*lines, *(f"  left as it was: {plain(what)}" for what in ended["left"])])
