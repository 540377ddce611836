"""A clock of the time in which its owner was awake."""

__all__ = ["AwakeClock"]

LONGEST_TURN_S = 2.0  # between two looks of a loop that waits for nobody else


class AwakeClock:
    """A clock that goes on while its owner looks at it, and stands still while the owner is stopped.

    A process that was stopped, or had no turn on a busy machine, finds on waking that much time has passed.
    What others have done meanwhile it has not read yet: that time is no reason to think that they hang.
    """

    def __init__(self) -> None:
        self.awake_s = 0.0
        self._looked_s: float | None = None

    def look(self, now: float) -> float:
        """Return the seconds awake, ``now`` by a monotonic clock."""
        if self._looked_s is not None:
            self.awake_s += min(max(0.0, now - self._looked_s), LONGEST_TURN_S)
        self._looked_s = now
        return self.awake_s
