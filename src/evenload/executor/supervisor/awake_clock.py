"""A clock of the time in which its owner was awake."""

from collections import deque
from itertools import takewhile

LONGEST_TURN_S = 2.0  # between two looks of a loop that waits for nobody else
LATE_S = 1.0  # a look so late: the program itself was stopped meanwhile, and its workers maybe with it
MOST_PAUSES = 1000  # are remembered


class AwakeClock:
    """A clock that goes on while its owner looks at it, and stands still while the owner is stopped.

    A process that was stopped, or had no turn on a busy machine, finds on waking that much time has passed.
    What others have done meanwhile it has not read yet: that time is no reason to think that they hang.

    turn_s     a look that comes so long after it was due was kept up
    counted_s  of the time to such a look, what counts all the same; by default ``turn_s``
    """

    def __init__(self, turn_s: float = LONGEST_TURN_S, counted_s: float | None = None) -> None:
        self._turn_s = turn_s
        self._counted_s = turn_s if counted_s is None else counted_s
        self._looked_s: float | None = None
        self._pauses: deque[tuple[float, float]] = deque(maxlen=MOST_PAUSES)

    def look(self, now: float, due_s: float = 0.0) -> None:
        """Take note that the owner is awake ``now``, by a monotonic clock; ``due_s``: it was to look then."""
        last_s, self._looked_s = self._looked_s, now
        if last_s is not None and now - max(last_s, due_s) > self._turn_s:
            self._pauses.append((last_s + self._counted_s, now))

    def since(self, then: float, now: float) -> float:
        """Return the seconds awake from ``then`` until ``now``."""
        late = takewhile(lambda pause: pause[1] > then, reversed(self._pauses))
        return max(0.0, now - then) - sum(to_s - max(from_s, then) for from_s, to_s in late)
