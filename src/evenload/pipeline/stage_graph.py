"""Which stages each stage of a job takes from: a graph in which a stage comes after what it needs."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class StageGraph:
    """The needs of each stage by number, each of them smaller than the stage's own.

    expands  stages that make parts of what they are given: what needs them goes through each part
    gathers  stage -> the stage whose parts it takes together again

    A chain is the graph in which each stage needs the one before it.
    """

    needs: tuple[tuple[int, ...], ...]
    expands: frozenset[int] = frozenset()
    gathers: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert all(0 <= need < stage for stage, needs in enumerate(self.needs) for need in needs)

    @functools.cached_property
    def scopes(self) -> tuple[tuple[int, ...], ...]:
        """For each stage, whose parts go through it, the outermost first; () for whole items."""
        found: list[tuple[int, ...]] = []
        for stage, needs in enumerate(self.needs):
            inner = max((self.scope_after(need, found) for need in needs), key=len, default=())
            parts = self.gathers.get(stage)
            found.append(inner if parts is None else inner[: inner.index(parts)] if parts in inner else ())
        return tuple(found)

    def scope_after(self, stage: int, scopes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """Return the scope of what takes from ``stage``; ``scopes`` are those of the stages so far."""
        return (*scopes[stage], stage) if stage in self.expands else scopes[stage]

    def __len__(self) -> int:
        return len(self.needs)

    @functools.cached_property
    def next(self) -> tuple[tuple[int, ...], ...]:
        """For each stage, the stages that need it themselves."""
        stages = range(len(self.needs))
        return tuple(tuple(later for later in stages if stage in self.needs[later]) for stage in stages)

    @functools.cached_property
    def before(self) -> tuple[frozenset[int], ...]:
        """For each stage, all stages that it needs, itself or through others."""
        found: list[frozenset[int]] = []
        for needs in self.needs:
            found.append(frozenset(needs).union(*(found[need] for need in needs)))
        return tuple(found)

    @functools.cached_property
    def after(self) -> tuple[frozenset[int], ...]:
        """For each stage, all stages that need it, themselves or through others."""
        stages = range(len(self.needs))
        return tuple(frozenset(s for s in stages if stage in self.before[s]) for stage in stages)

    @functools.cached_property
    def ends(self) -> frozenset[int]:
        """Stages that nobody needs."""
        return frozenset(stage for stage, later in enumerate(self.next) if not later)

    @functools.cached_property
    def is_chain(self) -> bool:
        return self.needs == chain(len(self.needs)).needs

    def inner_needs(self, gather: int) -> list[int]:
        """Return the needs of a gathering stage that parts go through, or that make them."""
        parts = self.gathers[gather]
        return [need for need in self.needs[gather] if need == parts or parts in self.scopes[need]]

    def inner(self, gather: int) -> list[int]:
        """Return all stages before a gathering one that its parts go through."""
        return [stage for stage in self.before[gather] if self.gathers[gather] in self.scopes[stage]]

    def last_of(self, scope: tuple[int, ...]) -> list[int]:
        """Return the stages of a scope that no other of it, or of parts in it, needs."""
        n = len(scope)
        return [
            stage
            for stage, one in enumerate(self.scopes)
            if one == scope and all(self.scopes[later][:n] != scope for later in self.next[stage])
        ]

    def beside(self, stage: int) -> frozenset[int]:
        """Return the stages that neither come before ``stage`` nor after it."""
        related = self.before[stage] | self.after[stage] | {stage}
        return frozenset(range(len(self.needs))) - related

    def longest_before(self, lengths: Sequence[float]) -> list[float]:
        """Return for each stage the longest sum of ``lengths`` on a way to it, without its own."""
        found: list[float] = []
        for needs in self.needs:
            found.append(max((found[need] + lengths[need] for need in needs), default=0.0))
        return found

    def longest_after(self, lengths: Sequence[float]) -> list[float]:
        """Return for each stage the longest sum of ``lengths`` on a way from it, without its own."""
        found = [0.0] * len(self.needs)
        for stage in reversed(range(len(self.needs))):
            found[stage] = max((found[later] + lengths[later] for later in self.next[stage]), default=0.0)
        return found


@functools.cache
def chain(n_stages: int) -> StageGraph:
    """Return the graph in which each stage needs the one before it."""
    return StageGraph(tuple((stage - 1,) if stage else () for stage in range(n_stages)))
