"""A run simulated again from its own times: its items, dealt the longest first to whoever ends them first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evenload.report.losses.track_seconds import INSIDE


@dataclass(frozen=True, slots=True)
class ReplaySlot:
    """A worker slot of a replay: free from ``start_s`` on; a second of work takes it ``1 + more`` seconds.

    more  what it lost beside a second of useful work: cause -> seconds
    """

    start_s: float
    more: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RunReplay:
    """The items of a run and the slots that it had.

    stretches  what ran at the same time, in order: (stage, work) of each item
    speeds     stage -> slot -> work per second
    """

    stretches: Sequence[Sequence[tuple[str, float]]]
    slots: Mapping[str, ReplaySlot]
    speeds: Mapping[str, Mapping[str, float]]

    def makespan_s(self, without: str = "", *, parts: int = 1, together: int = 1) -> float:
        """Seconds until all items are done.

        without   a cause whose losses are left out: start-up, waiting (for items, and inside of them),
                  overhead, repeats, not known; INSIDE: only waiting inside of items
        parts     every item is cut into so many
        together  so many of like size are dealt at once
        """
        left_out = ("waiting", INSIDE) if without == "waiting" else (without,)
        free = {name: 0.0 if without == "start-up" else slot.start_s for name, slot in self.slots.items()}
        slower = {
            name: 1.0 + sum(seconds for cause, seconds in slot.more.items() if cause not in left_out)
            for name, slot in self.slots.items()
        }
        end_s = 0.0
        for items in self.stretches:
            free = {name: max(t, end_s) for name, t in free.items()}
            end_s = max(end_s, self._stretch(_merged(items, together), free, slower, parts))
        return end_s

    def _stretch(
        self,
        items: Sequence[tuple[str, float]],
        free: dict[str, float],
        slower: Mapping[str, float],
        parts: int,
    ) -> float:
        end_s = 0.0
        for work, stage in sorted((-work / parts, stage) for stage, work in items for _ in range(parts)):
            took = {
                name: free[name] - work / speed * slower[name] for name, speed in self.speeds[stage].items()
            }
            if took:
                name = min(took, key=took.__getitem__)
                free[name] = took[name]
                end_s = max(end_s, took[name])
        return end_s


def _merged(items: Sequence[tuple[str, float]], n: int) -> Sequence[tuple[str, float]]:
    """Return every ``n`` items of like size of a stage as one."""
    if n == 1:
        return items
    merged = []
    for stage in {stage for stage, _ in items}:
        sizes = sorted(work for name, work in items if name == stage)
        merged += [(stage, sum(sizes[at : at + n])) for at in range(0, len(sizes), n)]
    return merged
