"""What a run gave: one row for each item, in input order."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evenload.report.summary import Summary

__all__ = ["ItemFailure", "ItemResult", "PipelineResult"]

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class ItemFailure:
    """Why an item went no further. ``type`` is the exception's; ``traceback`` is the worker's, for people."""

    stage: str
    type: str
    message: str
    traceback: str = ""

    def to_json(self) -> dict[str, str]:
        return {"stage": self.stage, "type": self.type, "message": self.message}


@dataclass(frozen=True, slots=True)
class ItemResult:
    """One item after the run. ``status``: done | failed | unfinished (the run stopped before its turn).

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

    def to_json(self) -> dict[str, Any]:
        """The row in results.jsonl; tracebacks are left to events.jsonl."""
        row = {one.name: getattr(self, one.name) for one in fields(self)}
        return {**row, "error": self.error.to_json() if self.error else None}


@dataclass(frozen=True)
class PipelineResult:
    """A finished run; iterates over its ``ItemResult``s in input order.

    ``status``: done | failures (some items failed) | failed (stopped because of failures) | interrupted.
    ``headline`` holds the figures that the job's own function made, ``summary`` those of every run, and
    ``faults`` says what the record of the run lacks (a full disk), one sentence each.
    """

    folder: Path
    status: str
    items: list[ItemResult]
    summary: "Summary"
    headline: Mapping[str, Any] = field(default_factory=dict)
    report: Path | None = None
    faults: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[ItemResult]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    @property
    def failures(self) -> list[ItemResult]:
        return [item for item in self.items if item.error is not None]

    @property
    def n_done(self) -> int:
        return sum(item.status == "done" for item in self.items)

    @property
    def exit_code(self) -> int:
        return {"done": 0, "interrupted": 130}.get(self.status, 1)

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
            "n_unfinished": len(self.items) - self.n_done - n_failed,
            "faults": self.faults,
            "headline": dict(self.headline),
            "summary": self.summary.to_json(),
            "failures": [{"id": item.id, **item.error.to_json()} for item in self.items if item.error],
        }
