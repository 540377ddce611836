"""The certificate of a run, from its events: chunks, speeds, and what proves the bound.

    events ──► chunks of each stage, in nanoseconds ──► balance.run_claim ──► document

The summary's stretches of time and bound show which prices to try.
"""

from collections.abc import Iterable
from typing import Any

from evenload.balance.bound import work_prices
from evenload.balance.factors import waited_seconds
from evenload.balance.run_claim import StageChunks, Stretch, claim_run, settle
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
