"""The certificate of a run, from its events: chunks, speeds, and what proves the bound; and what it shows.

    events ──► chunks of each stage, in nanoseconds ──► balance.run_claim ──► document

The summary's stretches of time and bound show which prices to try. Of a device that did nothing nobody knows
how fast it is, so the bound is without it; ``share_with_idle`` counts each as fast as the fastest.
"""

import math
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

from evenload.balance.bound import work_prices
from evenload.balance.factors import waited_seconds
from evenload.balance.run_claim import StageChunks, Stretch, best_witness, claim_run, settle, up_to
from evenload.errors import ConfigError
from evenload.events import Event, RunStarted, Span, WorkerExited, WorkerStarted
from evenload.report.items import NeededItems
from evenload.report.tally import Tally
from evenload.report.worker_tracks import WorkerTracks

__all__ = ["run_certificate"]


def run_certificate(events: Iterable[Event]) -> dict[str, Any]:
    """Return the certificate of a run from its events, as an object for ``json.dumps``.

    It claims the time of the work (``work_s`` of the summary, in nanoseconds) and its bound, and has every
    chunk that counted: which device did which items when. ``evenload.certificate`` checks it.

    Raises ConfigError if nothing was measured, or the log is damaged such that its numbers prove nothing.
    """
    tally, chunks, name = Tally(), ChunkRows(), ""
    for event in events:
        tally.add(event)
        chunks.add(event)
        if isinstance(event, RunStarted):
            name = name or event.name
    stages, lanes = chunks.stages(), chunks.lanes()
    by_name = {stage.name: stage for stage in stages}
    lanes |= dict.fromkeys(chunks.idle(), 1)
    stretches = []
    for start_s, stop_s, works in tally.stretches():
        works = {one: work for one, work in works.items() if one in by_name}
        some, prices = [by_name[one] for one in works], work_prices(works.values())
        for one, work in works.items():
            by_name[one].share(work.shared(), list(lanes))
        stretches.append(Stretch(chunks.time(start_s), chunks.time(stop_s), some, prices))
    return claim_run(name or next(iter(by_name), "run"), stages, lanes, stretches, tally.likes)


class ChunkRows:
    """The chunks of a run that count as work, by stage; ``add`` every event.

    Chunks of one worker follow one another. Where a log has them at the same time, the worker has lanes: the
    bound counts it that often.
    """

    def __init__(self) -> None:
        self._tracks = WorkerTracks()
        self._numbers: dict[str, int] = {}
        self._stages: dict[str, StageChunks] = {}
        self._needed = NeededItems()
        self._shift = 0
        self._devices: dict[str, None] = {}
        self._used: set[str] = set()

    def time(self, t: float) -> int:
        """Return nanoseconds on the document's clock, which begins at 0."""
        return round(t * 1e9) + self._shift

    def add(self, event: Event) -> None:
        if isinstance(event, (WorkerStarted, WorkerExited)):
            self._tracks.see(event)
        self._needed.add(event)
        if isinstance(event, RunStarted):
            self._devices |= dict.fromkeys(event.devices)
        if not isinstance(event, Span):
            return
        track = self._tracks.key(event.device, event.worker)
        if event.status in ("superseded", "lost") or event.n_items <= 0:
            return
        self._used |= {event.device, event.worker, *event.device.split("+")}
        first = event.index if event.items is None else min(event.items, default=0)
        n_all = event.n_items if event.items is None else len(event.items)
        if first < 0 or n_all != event.n_items:
            raise ConfigError(
                f"this run cannot be certified: its log is damaged, a chunk has {event.n_items} items from"
                f" {first}", hint="`evenload report` shows what can be read of it",
            )  # fmt: skip
        items = self._needed.runs(event)
        start, stop = round(event.start_s * 1e9), round(event.stop_s * 1e9)
        is_good = event.status == "ok" and (event.cost is None or event.cost > 0)
        stage = self._stages.setdefault(event.stage, StageChunks(event.stage))
        device = self._numbers.setdefault(track, len(self._numbers))
        waited_s = waited_seconds(event, event.task_s)
        work, waited = round((event.task_s - waited_s) * 1e9), round(waited_s * 1e9)
        stage.add(device, start, stop, work, items, n_all, event.cost, is_good, waited)

    def lanes(self) -> dict[str, int]:
        """Return for each worker's track how many chunks it had at once, most of all 1; evens out clocks."""
        rows: list[list[list[Any]]] = [[] for _ in self._numbers]
        for stage in self._stages.values():
            for row in stage.rows:
                rows[row[0]].append(row)
        return {track: settle(rows[number]) for track, number in self._numbers.items()}

    def idle(self) -> list[str]:
        """Return the devices of the run on which nothing ran, of which nobody knows how fast they are."""
        return [one for one in self._devices if one not in self._used]

    def stages(self) -> list[StageChunks]:
        """Return the stages that did anything, their times from 0 on."""
        first = min((row[1] for stage in self._stages.values() for row in stage.rows), default=0)
        if first < 0 and not self._shift:
            self._shift = -first
            for stage in self._stages.values():
                stage.rows = [[row[0], row[1] - first, row[2] - first, *row[3:]] for row in stage.rows]
        return list(self._stages.values())


__all__ = ["idle_devices", "share_up_to", "share_with_idle"]


def idle_devices(page: Any) -> list[int]:
    """Return the numbers of the devices of a checked certificate that did nothing in any stage of a run."""
    if page["kind"] != "run":
        return []
    evidence = page["evidence"]
    used = {chunk[0] for stage in evidence["stages"] for chunk in stage["chunks"]}
    used |= {part for at in used for part in evidence["devices"][at]["parts"] or []}
    return [at for at, one in enumerate(evidence["devices"]) if at not in used and not one["parts"]]


def share_with_idle(page: Any) -> Fraction:
    """Return bound over achieved, with devices that did nothing as fast as the fastest in each stage.

    page  a certificate that ``load`` has read, and ``evenload.certificate.check`` has accepted

    It is the certificate's own share if all devices worked, or could not have made the run shorter: one long
    item is on one device, whatever the others do.
    """
    claimed = Fraction(page["claim"]["bound"]) / Fraction(page["claim"]["achieved"])
    if not idle_devices(page):
        return claimed
    bound = sum(best_witness(*stretch).bound for stretch in _stretches(page, idle_devices(page)))
    return min(claimed, bound / Fraction(page["claim"]["achieved"]))


def share_up_to(page: Any, *, with_idle: bool) -> Fraction:
    """Return up to what the share of the best possible may be, at speeds that a run's chunks do not rule out.

    page  a certificate that ``load`` has read, and ``evenload.certificate.check`` has accepted
    """
    claimed = Fraction(page["claim"]["bound"]) / Fraction(page["claim"]["achieved"])
    if page["kind"] != "run":
        return claimed
    idle = idle_devices(page) if with_idle else []
    most = sum(Fraction(up_to(*stretch)) for stretch in _stretches(page, idle))
    return min(Fraction(1), most / Fraction(page["claim"]["achieved"]))


def _stretches(page: Any, idle: list[int]) -> Iterator[tuple[list[StageChunks], list[float], list[int]]]:
    """For each stretch its stages, with idle devices as fast as the fastest; prices, and lanes of devices."""
    evidence = page["evidence"]
    stages = [_with_idle(stage, idle) for stage in evidence["stages"]]
    for stretch in evidence["stretches"]:
        some = [stages[at] for at in stretch["stages"]]
        prices = list(map(float, stretch["prices"])) or [0.0] * len(some)
        yield some, prices, [one["lanes"] for one in evidence["devices"]]


def _with_idle(stage: Any, idle: list[int]) -> StageChunks:
    chunks: list[list[Any]] = [[*map(int, row[:4]), *row[4:]] for row in stage["chunks"]]
    n_of = [(sum(row[4][1::2]), sum(row[4][1::2]) + row[5]) for row in chunks]
    speeds: dict[int, tuple[Any, float, float, float]] = {
        d: (who, float(one), float(low), float(high)) for d, (who, one, low, high) in stage["rate"].items()
    }
    if speeds:
        fastest = max(one[1] for one in speeds.values())
        speeds |= {d: (d, fastest, fastest, fastest) for d in idle}
    waited = list(map(int, stage.get("waited", ()))) or [0] * len(chunks)
    return StageChunks(str(stage.get("name", "")), chunks, n_of, speeds, waited=waited)


__all__ = ["badge"]

LABEL = "of the best possible"
LETTER_PX = 6.3  # of the font at 11 px, on average; textLength makes it exact
COLOURS = ((95, "#2e7d32"), (80, "#8d6e00"), (0, "#c62828"))  # white letters can be read on each


def badge(share: Fraction | float) -> str:
    """Return an SVG that says which share of the best possible was reached, in whole percent, rounded down.

    share  bound over achieved, 0 to 1
    """
    percent = max(0, min(100, math.floor(share * 100)))
    colour = next(one for least, one in COLOURS if percent >= least)
    words = (("evenload", "#37474f"), (f"{percent} % {LABEL}", colour))
    widths = [round(len(text) * LETTER_PX) + 12 for text, _ in words]
    parts, at = [], 0
    for (text, fill), width in zip(words, widths, strict=True):
        parts.append(f'<rect x="{at}" width="{width}" height="20" fill="{fill}"/>')
        parts.append(f'<text x="{at + 6}" y="14" textLength="{width - 12}">{text}</text>')
        at += width
    title = " ".join(text for text, _ in words)
    style = 'fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{at}" height="20" role="img" aria-label="{title}">'
        f"<title>{title}</title><g {style}>{''.join(parts)}</g></svg>\n"
    )
