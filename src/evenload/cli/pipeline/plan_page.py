"""What ``evenload plan`` shows: needs, modes, phases with memory, the timeline, what was assumed."""

import shutil
from collections.abc import Sequence

from evenload._memory_sizes import gib_text
from evenload._plain_text import seconds_text
from evenload.cli.terminal.table import format_table
from evenload.cli.terminal.text_charts import has_blocks, lettered_lines
from evenload.pipeline.plan import Phase, Plan
from evenload.pipeline.planning.job_plan import best_of_each_mode
from evenload.report.costs import cost_text

MOST_NOTES = 5


def page(plan: Plan, job: str, n_items: int, names: Sequence[str], *, is_verbose: bool = False) -> list[str]:
    """The whole page, a line each.

    names       what kind each device is
    is_verbose  show all notes, not only the first ones
    """
    kinds = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    width = min(110, shutil.get_terminal_size((90, 24)).columns)
    lines = [f"{job}: {n_items} items on {kinds}", "", *_needs(plan), ""]
    if plan.makespan_s is not None and plan.bound_s is not None:
        over = f", {plan.ratio:.2f} x the bound" if plan.ratio else ""
        bound = seconds_text(plan.bound_s)
        lines.append(f"{plan.mode}: {seconds_text(plan.makespan_s)}{over}; no plan can end before {bound}")
        cost = cost_text(plan.facts.get("cost", {}))
        lines += [f"  {plan.why}", *([f"  costs {cost}"] if cost else []), "", *_modes(plan), ""]
    else:
        lines += [f"{plan.mode}: {plan.why}", ""]
    lines += [*_phases(plan), "", *_host_memory(plan)]
    if plan.slices and plan.makespan_s:
        lines += [*stage_gantt(plan, width), ""]
    lines += _notes(plan.notes, len(plan.notes) if is_verbose else MOST_NOTES)
    return lines if lines[-1] else lines[:-1]


def _notes(notes: Sequence[str], most: int) -> list[str]:
    """At most ``most`` lines, the last of which counts those left out."""
    if len(notes) <= most:
        return [f"note: {note}" for note in notes]
    n_left = len(notes) - most + 1
    return [*(f"note: {note}" for note in notes[: most - 1]), f"and {n_left} more notes, see --verbose"]


def _host_memory(plan: Plan) -> list[str]:
    """What is pinned for streamed blocks, and of how much host memory."""
    if not plan.streamed_bytes:
        return []
    host_bytes = plan.facts.get("host_bytes")
    if host_bytes is None:
        beside = "not checked: give the host's memory, --devices 8x24GB:h100,host=256GB, or devices.host"
    else:
        beside = f"of {gib_text(host_bytes)} that are free"
    return [f"host memory: {gib_text(plan.streamed_bytes)} pinned for streamed blocks, {beside}", ""]


def _needs(plan: Plan) -> list[str]:
    rows, stages = [], plan.facts.get("stages", ())
    before = [[], *([stage["name"]] for stage in stages)]
    is_chain = all(stage["needs"] == chained for stage, chained in zip(stages, before, strict=False))
    for stage in stages:
        largest = max(stage["components"], key=lambda c: c["bytes"], default=None)
        weights = "unknown" if stage["weight_bytes"] is None else gib_text(stage["weight_bytes"])
        parts = ", ".join(f"{c['name']} {gib_text(c['bytes'])}" for c in stage["components"])
        if largest is not None and largest["n_blocks"]:
            parts += f" ({largest['n_blocks']} blocks)"
        rows.append(
            [
                stage["name"],
                *([] if is_chain else [", ".join(stage["needs"]) or "the items"]),
                weights,
                gib_text(stage["activation_bytes"]) if stage["activation_bytes"] else "",
                _sourced(stage["item_s"], stage["item_from"]),
                _sourced(stage["load_s"], stage["load_from"]) if stage["load_s"] else "",
                parts if len(stage["components"]) > 1 or "blocks" in parts else "",
            ]
        )
    return format_table(
        [
            "stage",
            *([] if is_chain else ["takes from"]),
            *("weights", "activations", "an item", "to load", "parts"),
        ],
        rows,
        right=("weights", "activations"),
    )


def _sourced(seconds: float | None, source: str) -> str:
    return "unknown" if seconds is None else f"{seconds_text(seconds)} ({source})"


def _modes(plan: Plan) -> list[str]:
    rows = []
    for one in best_of_each_mode(plan):
        if one.makespan_s is None:
            rows.append([one.mode, "–", "–", one.why or one.label])
        else:
            over = f"{one.makespan_s / plan.bound_s:.2f}" if plan.bound_s else ""
            rows.append([one.mode, seconds_text(one.makespan_s), over, one.label])
    return format_table(["mode", "makespan", "x bound", "how"], rows, right=("makespan",))


def _phases(plan: Plan) -> list[str]:
    rows = []
    for number, phase in enumerate(plan.phases):
        for stage in phase.stages:
            rows += [[str(number + 1), stage, *cells] for cells in _units(plan, number, phase, stage)]
    return format_table(
        ["phase", "stage", "devices", "held", "items", "memory on each"], rows, right=("items",)
    )


def _units(plan: Plan, number: int, phase: Phase, stage: str) -> list[list[str]]:
    """Rows of a phase; units that hold the stage in the same way share one."""
    memory = {one.device: one for one in plan.memory}
    groups: dict[tuple[str, str, int], list] = {}
    for unit in phase.units:
        if unit.stage == stage:
            needs = [memory[d].phase2bytes[number] for d in unit.devices if d in memory]
            free = [memory[d].free_bytes for d in unit.devices if d in memory]
            key = (str(unit.fit), _of(needs, free), len(unit.devices))
            groups.setdefault(key, []).append(unit)
    rows = []
    for (fit, size, _), units in groups.items():
        n_items = sum(unit.n_items for unit in units)
        if plan.makespan_s is not None and not n_items:
            continue  # held ready, and no item comes to it
        devices = ", ".join("+".join(unit.devices) for unit in units) if len(units) <= 2 else (
            f"{'+'.join(units[0].devices)} ... {'+'.join(units[-1].devices)} ({len(units)})"
        )  # fmt: skip
        rows.append([devices, fit, str(n_items) if plan.makespan_s is not None else "", size])
    return rows


def _of(needs: Sequence[int | None], free: Sequence[int | None]) -> str:
    known = [n for n in needs if n is not None]
    if not known:
        return "unknown"
    least = min((f for f in free if f is not None), default=None)
    return gib_text(max(known)) + (f" of {gib_text(least)}" if least is not None else "")


def stage_gantt(plan: Plan, width: int) -> list[str]:
    """A row for each device, a letter for each stage, ``-`` while a model loads; a scale and a legend."""
    end_s = max(plan.makespan_s or 0.0, max((s.stop_s for s in plan.slices), default=0.0))
    stages = [stage["name"] for stage in plan.facts.get("stages", ())]
    stages = stages or list(dict.fromkeys(s.stage for s in plan.slices))
    letters = _letters(stages)
    idle = "·" if has_blocks() else "."
    rows: dict[str, list[tuple[float, float, str]]] = {one.device: [] for one in plan.memory}
    for piece in plan.slices:
        letter = "-" if piece.kind == "load" else letters[piece.stage]
        rows.get(piece.device, []).append((piece.start_s, piece.stop_s, letter))
    legend = ", ".join(f"{letter} {stage}" for stage, letter in letters.items())
    margin = " " * (max(map(len, rows)) + 1)
    return [*lettered_lines(rows, end_s, width, idle), f"{margin}{legend}, - loading, {idle} idle"]


def _letters(stages: Sequence[str]) -> dict[str, str]:
    """The first letter of each stage's name that is still free, else a digit."""
    letters: dict[str, str] = {}
    for number, stage in enumerate(stages):
        free = [c for c in stage.lower() if c.isalpha() and c.isascii() and c not in letters.values()]
        letters[stage] = free[0] if free else str(number % 10)
    return letters
