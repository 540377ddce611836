"""An audit as text for a terminal."""

from collections.abc import Sequence

from evenload._plain_text import seconds_text
from evenload.audit.audit import Audit, AuditedGap, device_time
from evenload.audit.compare import Change, Comparison, shares
from evenload.audit.losses import CAUSES
from evenload.cli.terminal.table import format_table

MOST_DEVICES_SHOWN = 16
MOST_CULPRITS_SHOWN = 6
LEAST_SHOWN = 0.005  # of all waiting for ranks
MOST_SPAN = 60  # characters


def audit_text(found: Audit) -> list[str]:
    """The audit as lines: one sentence, what was lost to which cause and rank, and what would have helped."""
    whole_ns = found.wall_ns * len(found.devices)
    lost_ns = whole_ns - found.work_ns - found.lost_ns["not recorded"]
    lines = [
        found.sentence,
        "",
        f"{found.source}: {found.n_spans:,} spans on {_devices_text(found)}, {_time(found.wall_s)}",
        f"{found.share:.1%} of the devices' time was work; lost: {device_time(lost_ns)}",
        "",
    ]
    causes = [
        [cause, device_time(ns), f"{ns / whole_ns:.1%}", CAUSES[cause].says]
        for cause, ns in sorted(found.lost_ns.items(), key=lambda one: -one[1])
        if ns
    ]
    head = ["lost to", "device time", "share", ""]
    lines += format_table(head, causes, right=("device time", "share"))
    lines += [*_culprits(found), *_gaps(found), *_steps(found), *_others(found), "", *_devices(found)]
    if found.gaps:
        lines += ["", "longest stretches with at most one device at work:"]
        lines += format_table(["from", "for", "device", "span"], [_gap(one) for one in found.gaps[:8]])
    lines += [""] * bool(found.findings) + list(found.findings)
    return lines


def _culprits(found: Audit) -> list[str]:
    """Who came late to collectives, and what that cost whom."""
    if not found.culprits:
        return []
    rows = [
        [
            one.device,
            f"{one.n_late:,}",
            f"{one.reason}{f': {_cut(one.span)}' if one.span else ''}",
            device_time(one.cost_ns),
            ", ".join(f"{name} {device_time(ns)}" for name, ns in _most(one.victims)),
        ]
        for one in found.culprits[:MOST_CULPRITS_SHOWN]
        if one.cost_ns > LEAST_SHOWN * found.lost_ns["late ranks"]
    ]
    head = ["came late", "times", "because of", "cost others", "of that"]
    return ["", *format_table(head, rows, right=("times", "cost others"))]


def _cut(span: str) -> str:
    return span if len(span) <= MOST_SPAN else f"{span[: MOST_SPAN - 1]}…"


def _most(victims: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(victims.items(), key=lambda one: -one[1])[:3]


def _gaps(found: Audit) -> list[str]:
    """What the program did while nothing ran on a device."""
    whole_ns = sum(found.gaps_ns.values())
    if not whole_ns:
        return []
    said = [
        f"{cause} {device_time(ns)}"
        for cause, ns in sorted(found.gaps_ns.items(), key=lambda one: -one[1])
        if ns
    ]
    return ["", f"while nothing ran on a device, the program was in: {', '.join(said)}"]


def _steps(found: Audit) -> list[str]:
    """Steps by rank, and what the slow ones did more of."""
    if not found.steps:
        return []
    rows = []
    for one in found.steps[:MOST_DEVICES_SHOWN]:
        slow = [
            f"{step.number}: {_time(step.took_s)}, {_time(step.more_s)} more {step.use}"
            for step in one.slow[:2]
        ]
        took = [_time(one.median_s), _time(one.longest_s)]
        rows.append([", ".join(one.devices[:2]), f"{one.n_steps}", *took, "; ".join(slow)])
    head = ["steps of", "number", "median", "longest", "slow"]
    return ["", *format_table(head, rows, right=("number", "median", "longest"))]


def _others(found: Audit) -> list[str]:
    if not found.what_ifs:
        return []
    rows = [["this run", _time(found.wall_s), "", ""]]
    rows += [
        [one.name, _time(one.wall_s), f"{one.wall_s / found.wall_s - 1:+.1%}", one.says]
        for one in found.what_ifs
    ]
    rows.append(["bound", _time(found.bound_s), "", "no plan for this work on these devices is faster"])
    return ["", *format_table(["", "takes", "change", ""], rows, right=("takes", "change"))]


def _devices(found: Audit) -> list[str]:
    shown = sorted(found.devices, key=lambda one: one.work_s)
    if len(shown) > MOST_DEVICES_SHOWN:
        shown = [*shown[: MOST_DEVICES_SHOWN // 2], *shown[-MOST_DEVICES_SHOWN // 2 :]]
    rows = []
    for one in shown:
        cause = max(one.lost_s, key=lambda name: one.lost_s[name])
        worst = f"{cause} {_time(one.lost_s[cause])}" if one.lost_s[cause] > 0 else ""
        rows.append([one.name, f"{one.work_s / found.wall_s:.1%}", f"{one.speed:.2f}", worst])
    left = len(found.devices) - len(shown)
    lines = format_table(["device", "work", "speed", "lost most to"], rows, right=("work", "speed"))
    return [*lines, f"... and {left} between them"] if left else lines


def _devices_text(found: Audit) -> str:
    n = len(found.devices)
    return f"{n} device{'s' * (n != 1)}"


def _gap(one: AuditedGap) -> list[str]:
    return [_time(one.start_s), _time(one.stop_s - one.start_s), one.device or "none", _cut(one.span)]


def comparison_text(found: Comparison) -> list[str]:
    """Two audits as lines: how long, which causes, which operators; and shares for a pair of devices."""
    before, after = found.before, found.after
    change = after.wall_s / before.wall_s - 1
    n_before, n_after = len(before.devices), len(after.devices)
    lines = [
        *([f"{n_before} devices before, {n_after} after: times are sums over them"] * (n_before != n_after)),
        f"{_time(before.wall_s)} before, {_time(after.wall_s)} after: {change:+.1%}; "
        f"{before.share:.1%} and {after.share:.1%} of the devices' time was work",
        "",
        *_changes("device time for", found.causes),
        "",
        *_changes("operator or kernel", found.operators),
    ]
    if len(before.devices) == len(after.devices) == 1 and before.work_ns and after.work_ns:
        first, second = shares(before.work_ns / 1e9, after.work_ns / 1e9)
        lines += [
            "",
            "If both did the same work, a pair of these devices takes equally long with shares of "
            f"{first:.1%} and {second:.1%}.",
        ]
    return lines


def _changes(what: str, rows: Sequence[Change]) -> list[str]:
    shown = [[_cut(one.name), _time(one.before_s), _time(one.after_s), _difference(one)] for one in rows]
    return format_table([what, "before", "after", "change"], shown, right=("before", "after", "change"))


def _difference(one: Change) -> str:
    more = one.after_s - one.before_s
    return f"{'+' if more >= 0 else '−'}{_time(abs(more))}"


def _time(seconds: float) -> str:
    return seconds_text(seconds, 4)
