"""Two audits compared: a run before and after a change, or one model on two kinds of devices.

Kernels have other names on other devices, and after other compilers; so work is summed by the operator that
launched it, where the traces tell that.

For two devices side by side, the shares of a batch that take both as long follow from the time that each took
for the whole: ``shares``.
"""

from dataclasses import asdict, dataclass

import numpy as np

from evenload.audit.audit import Audit, AuditParts, audit_of
from evenload.audit.losses import CAUSES
from evenload.audit.recording import WORK, Recording, shown_name

MOST_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Change:
    """Seconds of device time for one thing, before and after."""

    name: str
    before_s: float
    after_s: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two audits beside one another: work and causes, and the operators whose time changed most."""

    before: Audit
    after: Audit
    causes: tuple[Change, ...]
    operators: tuple[Change, ...]

    def to_json(self) -> dict[str, object]:
        """A value of JSON."""
        listed = {name: [asdict(one) for one in getattr(self, name)] for name in ("causes", "operators")}
        return {"schema": 1, "before": self.before.to_json(), "after": self.after.to_json(), **listed}


def compare(before: Recording, after: Recording) -> Comparison:
    """Compare two recordings, each of one run; their names are those of operators if they were read so."""
    first, second = (audit_of(AuditParts(one)) for one in (before, after))
    causes = [Change("work", first.work_ns / 1e9, second.work_ns / 1e9)]
    causes += [Change(name, first.lost_ns[name] / 1e9, second.lost_ns[name] / 1e9) for name in CAUSES]
    times = operator_s(before), operator_s(after)
    names = times[0].keys() | times[1].keys()
    changes = [Change(shown_name(name), times[0].get(name, 0.0), times[1].get(name, 0.0)) for name in names]
    changes.sort(key=lambda one: (-abs(one.after_s - one.before_s), one.name))
    kept = [one for one in causes if one.before_s or one.after_s]
    return Comparison(first, second, tuple(kept), tuple(changes[:MOST_SHOWN]))


def operator_s(recording: Recording) -> dict[str, float]:
    """Seconds of work by name, those that overlap counted each."""
    works = recording.kind == WORK
    took = (recording.stop_ns - recording.start_ns)[works]
    sums = np.bincount(recording.name[works], weights=took, minlength=len(recording.names))
    return {name: float(ns) / 1e9 for name, ns in zip(recording.names, sums, strict=True) if ns}


def shares(first_s: float, second_s: float) -> tuple[float, float]:
    """The shares of a batch with which two devices take equally long, by their seconds for all of it."""
    return second_s / (first_s + second_s), first_s / (first_s + second_s)
