"""What a run gave: one row for each item, in input order."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenload.pipeline.dispatch.strand import ItemFailure

if TYPE_CHECKING:
    from evenload.pipeline.dispatch.item_flow import ItemFlow, Strand
    from evenload.pipeline.stage import Item
    from evenload.report.summary import Summary

SCHEMA = 1
BEST_FIRST = ("done", "filtered", "failed", "open", "not chosen", "skipped")
SAMPLE_ENDS = ("done", "not_chosen", "filtered", "failed", "unfinished")
ITEM_ENDS = PART_ENDS = ("done", "filtered", "failed", "unfinished", "skipped")


@dataclass(frozen=True, slots=True)
class ItemResult:
    """One item after the run.

    ``status``: done | failed | filtered (it did not meet the condition of a stage) | unfinished (the run
    stopped before its turn) | skipped (it was left out, as asked). Of an item with samples, ``outputs`` are
    those of the best that is done, and ``samples`` has them all: seed, status, outputs and error of each.
    Of an item that was expanded, ``parts`` has its parts: id, status, outputs and error of each.

    ``inputs`` is what was known of it, ``outputs`` what all stages gave; files stand as paths relative to the
    run folder. Nothing here depends on how many devices there were or which was faster.
    """

    index: int
    id: str
    status: str
    seed: int
    group: str | None
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    error: ItemFailure | None = None
    samples: tuple[Mapping[str, Any], ...] = ()
    parts: tuple[Mapping[str, Any], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The row in results.jsonl; tracebacks are left to events.jsonl."""
        row = {one.name: getattr(self, one.name) for one in fields(self)}
        row["error"] = self.error.to_json() if self.error else None
        for name in ("samples", "parts"):
            row[name] = list(row[name])
            if not row[name]:
                del row[name]
        return row


def row_of(
    item: "Item",
    inputs: Mapping[str, Any],
    strands: "Sequence[Strand]",
    parts_of: "Callable[[Strand], Sequence[Strand]]" = lambda strand: (),
) -> ItemResult:
    """The row of an item from its strands, in order of sample; with more than one, the best of those stands
    for it: done before filtered before failed, then the one that went on the longest. Samples that were not
    chosen do not stand for it: if the chosen one fails later, so has the item.
    """
    if not strands:
        return ItemResult(item.index, item.id, "unfinished", item.seed, item.group, inputs, {})
    best, status = _best_of(strands), _status_of(strands)
    several = strands if len(strands) > 1 else ()
    samples = tuple({"seed": strand.item.seed, **_end(strand)} for strand in several)
    error = best.error if status == "failed" else None
    parts = tuple({"id": part.item.id, **_end(part)} for part in parts_of(best))
    return ItemResult(
        item.index, item.id, status, best.item.seed, item.group, inputs, best.outputs, error, samples, parts
    )


def _best_of(strands: "Sequence[Strand]") -> "Strand":
    return min(strands, key=lambda strand: (BEST_FIRST.index(strand.fate), -strand.n_stages, strand.sample))


def _status_of(strands: "Sequence[Strand]") -> str:
    fates = {strand.fate for strand in strands}
    is_open = not fates or ("open" in fates and "done" not in fates)
    return "unfinished" if is_open else _best_of(strands).fate


def _end(strand: "Strand") -> dict[str, Any]:
    fate = {"open": "unfinished"}.get(strand.fate, strand.fate)
    error = strand.error.to_json() if strand.error else None
    return {"status": fate, "outputs": strand.outputs, "error": error}


def count_ends(flow: "ItemFlow") -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Count the items of a run, the samples of those with several, and parts, by how they ended so far."""
    items = [[flow.strands[number] for number in numbers] for numbers in flow.strands_of]
    samples = [strand for strands in items if len(strands) > 1 for strand in strands]
    parts = [strand for strand in flow.strands if strand.parent is not None]
    fates = (["unfinished" if one.fate == "open" else one.fate for one in some] for some in (samples, parts))
    ends = _counted([_status_of(strands) for strands in items], ITEM_ENDS)
    return ends, _counted(next(fates), SAMPLE_ENDS), _counted(next(fates), PART_ENDS)


def _counted(statuses: Sequence[str], names: Sequence[str]) -> dict[str, int]:
    counts = Counter(status.replace(" ", "_") for status in statuses)
    return {"total": len(statuses), **{name: counts[name] for name in names}}


@dataclass(frozen=True)
class PipelineResult:
    """A finished run; iterates over its ``ItemResult``s in input order.

    ``status``: done | failures (some items failed) | failed (stopped because of failures) | timed out (the
    job's time was up) | interrupted.
    ``headline`` holds the figures that the job's own function made, ``summary`` those of every run, and
    ``faults`` says what the record of the run lacks (a full disk), one sentence each. ``n_restored`` results
    of a stage were there already, from an earlier run in the same folder. ``upload`` says what a store has of
    the run, if it is copied to one: to, n_files, n_new, n_left, why.
    """

    folder: Path
    status: str
    items: list[ItemResult]
    summary: "Summary"
    headline: Mapping[str, Any] = field(default_factory=dict)
    report: Path | None = None
    faults: list[str] = field(default_factory=list)
    n_restored: int = 0
    upload: Mapping[str, Any] | None = None

    def __iter__(self) -> Iterator[ItemResult]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> ItemResult:
        return self.items[index]

    def __repr__(self) -> str:
        ends = [f"{n} {end}" for end, n in self.item_counts.items() if n and end != "total"]
        return f"<{', '.join(ends)} of {len(self.items)} items: {self.folder}>"

    @property
    def failures(self) -> list[ItemResult]:
        return [item for item in self.items if item.error is not None]

    @property
    def n_done(self) -> int:
        return sum(item.status == "done" for item in self.items)

    @property
    def item_counts(self) -> dict[str, int]:
        """How many items came to which end: total, done, filtered, failed, unfinished, skipped."""
        return _counted([item.status for item in self.items], ITEM_ENDS)

    @property
    def sample_counts(self) -> dict[str, int]:
        """How many samples of items with several came to which end; total is 0 in a job without samples."""
        statuses = [str(sample["status"]) for item in self.items for sample in item.samples]
        return _counted(statuses, SAMPLE_ENDS)

    @property
    def part_counts(self) -> dict[str, int]:
        """How many parts of items came to which end; total is 0 in a job that expands nothing."""
        return _counted([str(part["status"]) for item in self.items for part in item.parts], PART_ENDS)

    @property
    def counts(self) -> dict[str, Any]:
        """Items, samples and parts by how they ended, and attempts: runs of an item through a stage."""
        n_attempts = sum(device.n_items for device in self.summary.devices) + self.summary.n_redone
        counts = {"items": self.item_counts, "samples": self.sample_counts, "attempts": n_attempts}
        return {**counts, "parts": self.part_counts} if self.part_counts["total"] else counts

    def certificate(self) -> dict[str, Any]:
        """Return the certificate of the run, for ``json.dumps``: what it did, and the proof of its bound.

        ``python -m evenload.certificate`` checks it. Raises ConfigError if nothing was measured.
        """
        from evenload.report.certificates import run_certificate
        from evenload.report.source import open_run

        return run_certificate(open_run(self.folder))

    @property
    def exit_code(self) -> int:
        code = {"done": 0, "interrupted": 130}.get(self.status, 1)
        return 1 if not code and self.upload and self.upload["n_left"] else code

    @property
    def n_filtered(self) -> int:
        return sum(item.status == "filtered" for item in self.items)

    def to_json(self) -> dict[str, Any]:
        """One object for ``json.dumps``: the numbers, the failures, and where everything is."""
        n_failed = len(self.failures)
        return {
            "schema": SCHEMA,
            "status": self.status,
            "folder": str(self.folder),
            "report": str(self.report) if self.report else None,
            "total": len(self.items),
            "n_done": self.n_done,
            "n_failed": n_failed,
            "n_filtered": self.n_filtered,
            "n_unfinished": self.item_counts["unfinished"],
            "n_restored": self.n_restored,
            "counts": self.counts,
            "faults": self.faults,
            **({} if self.upload is None else {"upload": dict(self.upload)}),
            "headline": dict(self.headline),
            "summary": self.summary.to_json(),
            "failures": [{"id": item.id, **item.error.to_json()} for item in self.items if item.error],
        }
