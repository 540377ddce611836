"""Whether a result that is there is still what would be computed, and why not, in words: pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evenload.pipeline.reuse.stage_identity import change_of

_SHOWN_REASONS = 2


def why_not_kept(
    facts: Mapping[str, str],
    was: Mapping[str, str] | None,
    reads: Mapping[str, str] | None,
    now: Mapping[str, str] | None,
) -> str:
    """Return why a result is not what would be computed now; "" if it is.

    facts, was  what makes the stage's results now, and what made this one
    reads, now  digests of what was read for it, and of the same things now; None if they cannot be compared
    """
    if was is not facts and (changed := change_of(was, facts)):
        return changed
    if reads is None:
        return "it read what cannot be compared with another run's"
    if now is None:
        return "what it read is being changed"
    names = [name for name, digest in reads.items() if now.get(name) != digest]
    return f"{', '.join(_shown(name) for name in names[:3])} changed" if names else ""


def _shown(read: str) -> str:
    kind, _, name = read.partition(":")
    if kind in ("value", "file"):
        return f"`{name}`"
    return {
        "job:seed": "the job's seed",
        "item:seed": "the seed",
        "item:index": "the place among the items",
        "names": "the columns",
        "values": "a column",
    }.get(read, f"the item's {name}")


@dataclass(slots=True)
class StageReuse:
    """How much of a stage is there already. ``n_cached``: of ``n_kept``, those from the shared cache.

    n_after  tasks that may come once earlier stages have done theirs; ``is_open``: and nobody knows how many
    why      reason -> results that are to do because of it
    n_timed  results that say how long they took, kept or not; ``total_s``: all of these together
    """

    name: str
    n_kept: int = 0
    n_cached: int = 0
    n_todo: int = 0
    n_after: int = 0
    is_open: bool = False
    why: Counter[str] = field(default_factory=Counter)
    n_timed: int = 0
    total_s: float = 0.0

    @property
    def item_s(self) -> float | None:
        """Mean seconds that an item took; None if nobody knows."""
        return self.total_s / self.n_timed if self.total_s > 0 else None

    def timed(self, seconds: float) -> None:
        """Count a result that took ``seconds``; 0 if it does not say."""
        self.n_timed += seconds > 0
        self.total_s += max(0.0, seconds)

    def to_text(self) -> str:
        """For example "score: 300 to do, since `questions` changed"."""
        said = []
        if self.n_kept:
            source = f" ({self.n_cached} from the cache)" if self.n_cached else ""
            said.append(f"{self.n_kept} of {self.n_kept + self.n_todo} kept{source}")
        if self.n_todo:
            reasons = [why for why, _ in self.why.most_common(_SHOWN_REASONS) if why]
            since = f", since {'; '.join(reasons)}" if reasons else ""
            said.append(f"{self.n_todo} to do{since}")
        if self.is_open:
            said.append("more after the stages before")
        elif self.n_after:
            said.append(f"up to {self.n_after} more after the stages before")
        return f"{self.name}: {', '.join(said) or 'nothing to do'}"

    def to_json(self) -> dict[str, Any]:
        return {
            "stage": self.name,
            "n_kept": self.n_kept,
            "n_from_cache": self.n_cached,
            "n_to_do": self.n_todo,
            "n_after": self.n_after,
            "why": dict(self.why),
        }
