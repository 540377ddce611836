"""A run as text, for a terminal without a browser: numbers, timeline, how long items took, failures."""

import shutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evenload._plain_text import number_text, seconds_text
from evenload.cli.terminal.gantt import gantt_lines
from evenload.cli.terminal.table import format_table
from evenload.cli.terminal.text_charts import has_blocks, histogram_lines

if TYPE_CHECKING:
    from evenload.report.source import RunEvents
    from evenload.report.summary import Summary

MAX_ROWS = 64
MAX_SLICES = 4_000
MAX_FAILURES = 5
KINDS = {"ok": "work", "failed": "lost", "lost": "lost", "superseded": "copy", "start-up": "start"}


def text_report(reading: "RunEvents", width: int | None = None) -> list[str]:
    """Lines of the report of a run, as wide as the terminal, at most 100 columns."""
    from evenload.report.durations import Durations
    from evenload.report.page.timeline import Timeline
    from evenload.report.tally import Tally

    width = min(100, width or shutil.get_terminal_size((80, 24)).columns)
    ascii_only = not has_blocks()
    tally, timeline, durations = Tally(), Timeline(MAX_SLICES), Durations()
    for event in reading:
        for sink in (tally, timeline, durations):
            sink.add(event)
    summary, shown = tally.summary(), timeline.to_json()
    lines = [_plain(summary.name) or "run", _plain(summary.headline()), ""]
    lines += _factor_lines(summary, width, ascii_only)
    picture = gantt_lines(_rows(shown), shown["end_s"], width, ascii_only=ascii_only)
    if picture:
        letters = "#= chunks, s start-up, c copy, x failed or lost, . without work" if ascii_only else ""
        said = letters or "█▓ chunks, ░ start-up, ▒ copy, x failed or lost, · without work"
        lines += [said, *picture, ""]
    rows = [
        [
            _plain(one.device),
            str(one.n_items),
            f"{one.utilisation:.0%}",
            number_text(one.items_per_s),
            f"{seconds_text(one.busy_s)}",
            f"{seconds_text(one.idle_s)}",
        ]
        for one in summary.devices[:MAX_ROWS]
    ]
    if rows:
        head = ["device", "items", "load", "items/s", "busy", "idle"]
        lines += [*format_table(head, rows, right=("items", "load", "busy", "idle", "items/s")), ""]
    for stage in durations.stages[:8]:
        bars = histogram_lines(durations.bins(stage), width, ascii_only=ascii_only)
        lines += [f"{_plain(stage)}: seconds per item, and how many took so long", *bars, ""]
    lines += [_plain(line) for line in _of_stages(summary)[:MAX_ROWS]]
    lines += _failures(summary)
    return lines if lines[-1] else lines[:-1]


def _of_stages(summary: "Summary") -> list[str]:
    """What was learned of stages, and how full their batches were."""
    from evenload.report.summary import batches_text

    learned = [f"learned of {stage.stage}: {stage.learned}" for stage in summary.stages if stage.learned]
    return [*learned, *(batches_text(stage) for stage in summary.stages if stage.n_batches)]


def _factor_lines(summary: "Summary", width: int, ascii_only: bool) -> list[str]:
    """The largest loss and what to do about it, then each factor, and the seconds that it took."""
    import textwrap

    factors, advice = summary.factors, summary.advice
    if factors is None:
        return []
    lines = [*textwrap.wrap(_plain(advice.text()), width), ""] if advice is not None else []
    rows = [
        [
            part.name,
            "not known" if part.value is None else f"{part.value:.3f}",
            "" if part.value is None else f"{seconds_text(part.lost_s)}",
        ]
        for part in factors.parts
    ]
    rows.append(["useful", f"{factors.share:.3f}", f"{seconds_text(factors.useful_s)}"])
    head = ["factor", "is", "took"]
    return [*lines, *format_table(head, rows, right=("is", "took")), ""]


def _failures(summary: "Summary") -> list[str]:
    lines = []
    for failure in summary.failures[:MAX_FAILURES]:
        first = failure.message.strip().splitlines()[:1]
        lines.append(_plain(f"failed: {failure.item or failure.index}: {failure.error}: {''.join(first)}"))
    if summary.n_failed > MAX_FAILURES:
        lines.append(f"... and {summary.n_failed - MAX_FAILURES} more failures")
    return lines


def _rows(shown: Mapping[str, Any]) -> dict[str, list[tuple[float, float, str]]]:
    rows = {}
    for row in shown["rows"][:MAX_ROWS]:
        lane = f"/{row['lane']}" if row["lane"] else ""
        slices, at = [], 0
        for delta, length, status in zip(row["start"], row["length"], row["status"], strict=True):
            at += delta
            kind = KINDS.get(shown["statuses"][status])
            if kind:
                slices.append((at / 1e6, (at + length) / 1e6, kind))
        rows[_plain(row["device"] + lane)[:24]] = slices
    return rows


def _plain(text: str) -> str:
    """``text`` without control characters, which could change the terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
