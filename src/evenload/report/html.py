"""The report: one HTML file that opens offline and loads nothing, made from a run's events alone.

    events ──► Tally, Timeline, LoadOverTime, Gallery ──► one JSON object ──► page.html with its scripts
    inside

The page trusts nothing that a run says: what comes from the run is one JSON block, in which every ``<`` is
escaped, and the scripts write it as text, never as markup. A Content-Security-Policy allows the page's own
two scripts by their hashes and nothing else.
"""

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from evenload._private_files import write_named
from evenload._version import __version__
from evenload.errors import ConfigError
from evenload.events import Event, ItemFinished, Note
from evenload.report.costs import cost_text
from evenload.report.page.bars import Bins, LoadOverTime
from evenload.report.page.gallery import Gallery
from evenload.report.page.planned import PlanAndRun
from evenload.report.page.timeline import Timeline
from evenload.report.source import RunEvents, open_run, read_config
from evenload.report.summary import Summary, counts_text
from evenload.report.tally import Tally

__all__ = [
    "RunView",
    "as_script_text",
    "asset",
    "fill",
    "page",
    "report_script",
    "view_of",
    "write_bench",
    "write_comparison",
    "write_report",
    "write_view",
]

SCHEMA = 1
MAX_NOTES = 200
SCRIPTS = (
    *("dom", "format", "theme", "tracks", "timeline", "pointer", "charts", "measures", "tables", "gallery"),
    *("factors", "plan", "live", "compare", "bench", "audit", "page"),
)
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


class RunView:
    """Everything that the page shows, gathered in one pass; a live page may ask for it again and again."""

    def __init__(self, max_slices: int = 100_000, max_pictures: int = 48, plan_bins: int = 1024) -> None:
        self.tally = Tally()
        self.timeline = Timeline(max_slices)
        self.load = LoadOverTime()
        self.gallery = Gallery(max_pictures)
        self.measures = Measures()
        self.plan = PlanAndRun(plan_bins)
        self.notes: list[dict[str, Any]] = []
        self.n_notes = 0

    def add(self, event: Event) -> None:
        self.tally.add(event)
        self.timeline.add(event)
        self.load.add(event)
        self.gallery.add(event)
        self.measures.add(event)
        self.plan.add(event)
        if isinstance(event, Note) and event.level != "debug":
            self.n_notes += 1
            if len(self.notes) < MAX_NOTES:
                self.notes.append(
                    {"t": event.t, "level": event.level, "source": event.source, "text": event.text[:2000]}
                )

    def to_json(
        self, folder: Path | None = None, faults: Iterable[str] = (), summary: Summary | None = None
    ) -> dict[str, Any]:
        """What the page is filled with. ``summary``: the tally's, where it is known."""
        return {
            "schema": SCHEMA,
            "version": __version__,
            "summary": (summary or self.tally.summary()).to_json(),
            "timeline": self.timeline.to_json(),
            "load": self.load.to_json(),
            "gallery": self.gallery.to_json(folder),
            "measures": self.measures.to_json(),
            "plan": self.plan.to_json(),
            "notes": self.notes,
            "n_notes": self.n_notes,
            "config": read_config(folder),
            "links": False,
            "faults": list(faults),
        }


def view_of(events: Iterable[Event]) -> RunView:
    view = RunView()
    for event in events:
        view.add(event)
    return view


def write_report(
    run: str | Path | RunEvents | Iterable[Event],
    path: str | Path | None = None,
    *,
    faults: Iterable[str] = (),
) -> Summary:
    """Write the report of ``run``, a run folder, its events file or the events, and return its numbers.

    ``path`` is ``report.html`` in the run folder if not given. The file appears whole or not at all.
    ``faults`` are sentences on what is known to be missing, shown with those found on reading.
    Raises ConfigError if there is no such run, or no place to write to.
    """
    if isinstance(run, (str, Path)):
        run = open_run(run)
    reading = run if isinstance(run, RunEvents) else None
    view = view_of(run)
    folder = reading.folder if reading else None
    if path is None:
        if folder is None:
            raise ConfigError("events alone do not say where the report goes", hint="give path=")
        path = folder / "report.html"
    summary = view.tally.summary()
    write_view(view, summary, path, folder, [*faults, *(reading.faults() if reading else ())])
    return summary


def write_view(
    view: RunView, summary: Summary, path: str | Path, folder: Path | None, faults: Iterable[str]
) -> None:
    """Write the report of a run that was read, as ``write_report``, with its ``summary``."""
    shown = view.to_json(folder, faults, summary)
    # Links to the pictures themselves work only from within the run folder.
    shown["links"] = folder is not None and Path(path).resolve().parent == folder.resolve()
    write_named(Path(path), page(shown))


def write_comparison(runs: Sequence[str | Path | RunEvents], path: str | Path) -> list[Summary]:
    """Write a page that shows two runs side by side, and return their numbers; as ``write_report`` else."""
    shown, summaries, names = [], [], []
    for run in runs:
        reading = run if isinstance(run, RunEvents) else open_run(run)
        view = view_of(reading)
        summaries.append(view.tally.summary())
        names.append(str(reading.folder or reading.path))
        page_of_run = view.to_json(None, reading.faults(), summaries[-1])
        shown.append({**page_of_run, "config": read_config(reading.folder)})
    headline = " — ".join(_headline(view["summary"]) for view in shown)
    both = as_script_text({"schema": SCHEMA, "runs": shown, "paths": names})
    text = fill(title="Two runs compared", headline=headline, view=both, script=report_script())
    write_named(Path(path), text)
    return summaries


def write_bench(results: dict[str, Any], path: str | Path) -> None:
    """Write a page that shows what ``evenload bench`` measured; as ``write_report`` else."""
    headline = f"{len(results['trials'])} trials on {results['machine'].get('cpu', 'a machine')}."
    text = fill(
        title="Bench",
        headline=headline,
        view=as_script_text({**results, "version": __version__}),
        script=report_script(),
    )
    write_named(Path(path), text)


def page(view: dict[str, Any]) -> str:
    """The page that shows ``view``."""
    return fill(
        title=view["summary"]["name"] or "run",
        headline=_headline(view["summary"]),
        view=as_script_text(view),
        script=report_script(),
    )


def fill(*, title: str, headline: str, view: str, script: str, policy: str = "", style: str = "") -> str:
    """The frame of a page with its parts. ``policy`` and ``style`` are added to what every page has.

    ``title`` and ``headline`` may be any text; ``view`` is made by ``as_script_text``.
    """
    scripts = {"echarts": asset("echarts.min.js"), "report": script}
    hashes = " ".join(f"'sha256-{_hash(text)}'" for text in scripts.values())
    parts = {
        "policy": f"{_POLICY}; script-src {hashes}{policy}",
        "title": _as_text(title),
        "style": asset("report.css") + style,
        "headline": _as_text(headline),
        "view": view,
        **scripts,
    }
    content = []
    for piece in asset("page.html").split("{{"):
        name, mark, rest = piece.partition("}}")
        content.append(parts[name.strip()] + rest if mark else piece)
    return "".join(content)


def as_script_text(value: Any) -> str:
    """JSON that is safe between script tags: no ``<``, ``>``, ``&`` or line separator is left in it."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False, default=str)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def asset(name: str) -> str:
    return (resources.files("evenload.report") / "assets" / name).read_text(encoding="utf-8")


def report_script(*more: str, names: Sequence[str] = SCRIPTS) -> str:
    """The page's own script: the files ``names`` of ``assets/js``, then ``more``, in their own scope."""
    texts = [*(asset(f"js/{name}.js") for name in names), *more]
    return '(() => {\n"use strict";\n' + "\n".join(texts) + "})();\n"


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _as_text(text: str) -> str:
    return "".join(mark if mark.isprintable() or mark == " " else "�" for mark in escape(text))


def _headline(summary: dict[str, Any]) -> str:
    of = f" of {summary['total']}" if summary["total"] is not None else ""
    factors = summary.get("factors")
    useful = f", {factors['share']:.0%} of it useful work at the devices' speed" if factors else ""
    counts = counts_text(summary.get("counts") or {})
    done = counts or f"{summary['n_done']}{of} done, {summary['n_failed']} failed"
    cost = f" for {text}" if (text := cost_text(summary.get("cost") or {})) else ""
    return f"{done}, in {summary['wall_s']:.1f} s{cost}{useful}."


N_BINS = 240
MAX_SERIES = 24


class Measures:
    """The numbers that items left, over their order: ``add`` every event. A run whose items leave pictures or
    other files has a gallery instead.

    Bounded: of many items neighbours are averaged into bins, which double their width as items come.

    ``to_json()`` is ``{stage: {"width", "n", "series": {name: [mean or None per bin]}}}``; a bin holds
    ``width`` items, the first one from item 0.
    """

    def __init__(self) -> None:
        self._bins: dict[str, Bins] = {}  # of each stage, with a sum and a count for each of its numbers
        self._has_files = False

    def add(self, event: Event) -> None:
        if not isinstance(event, ItemFinished) or not event.outputs or event.index < 0:
            return
        self._has_files = self._has_files or any(isinstance(value, str) for value in event.outputs.values())
        if self._has_files:
            return
        for name, value in event.outputs.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                continue
            bins = self._bins.setdefault(event.stage, Bins(N_BINS, 1))
            n_series = sum(len(one.sums) // 2 for one in self._bins.values())
            if (name, "sum") in bins.sums or n_series < MAX_SERIES:
                bins.add((name, "sum"), event.index, value)
                bins.add((name, "count"), event.index, 1)

    def to_json(self) -> Mapping[str, Any]:
        if self._has_files:
            return {}
        return {stage: _series(bins) for stage, bins in self._bins.items() if bins.sums}


def _series(bins: Bins) -> dict[str, Any]:
    n = bins.at(bins.end) + 1
    means = {
        name: [
            round(total / count, 9) if count else None
            for total, count in zip(row[:n], bins.sums[name, "count"], strict=False)
        ]
        for (name, part), row in bins.sums.items()
        if part == "sum"
    }
    return {"width": bins.width, "n": int(bins.end) + 1, "series": means}
