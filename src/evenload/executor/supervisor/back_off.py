"""When a worker that died is replaced, and when that is no use: a pure value, without clock or process."""

from collections.abc import Hashable
from dataclasses import dataclass

MOST_EARLY_DEATHS = 3
FIRST_PAUSE_S = 0.2  # before the second attempt to start a worker; doubles
MOST_REST_S = 30.0  # of a device whose workers end at work; a run may need it in the end


@dataclass(slots=True)
class BackOff:
    """A slot's workers that died in a row before one had a result, and when the next may start.

    n_in_vain     workers that ended at work since the slot had its last result
    why_given_up  why there will be no other worker, "" while there may be
    """

    n_deaths: int = 0
    not_before_s: float = 0.0
    why_given_up: str = ""
    n_in_vain: int = 0
    _built_last: Hashable | None = None

    def died(self, how: str, now: float, *, said: str = "", building: Hashable | None = None) -> bool:
        """Count a worker that ended before it had a result. Returns True if ``building`` is to blame.

        how       how it ended, in words that fit after "its worker"
        said      its last words, if any
        building  what it was building then; when that ends a second worker, it should be refused
        """
        if building is not None:
            if building == self._built_last:
                self.forgive()
                return True
            self._built_last = building
        self.n_deaths += 1
        self.not_before_s = now + FIRST_PAUSE_S * 2 ** (self.n_deaths - 1)
        if self.n_deaths >= MOST_EARLY_DEATHS:
            self.why_given_up = f"its worker {how} {self.n_deaths} times before it had a result{said}"
        return False

    def ended_at_work(self, now: float, *, others_work: bool) -> float:
        """Count a worker that ended while it ran an item. Returns the seconds that the slot is to rest.

        others_work  other slots had results since its own last one: then it may be the device, not the item
        """
        n_in_vain = self.n_in_vain + 1
        self.forgive()
        self.n_in_vain = n_in_vain
        rest_s = min(FIRST_PAUSE_S * 2 ** min(n_in_vain, 30), MOST_REST_S)
        rest_s *= others_work and n_in_vain > 1
        self.not_before_s = now + rest_s
        return rest_s

    def end_rest(self) -> None:
        """Let the next worker start now, where a rest after work is what it waits for."""
        if not self.n_deaths:
            self.not_before_s = 0.0

    def forgive(self) -> None:
        """Count from zero again: a worker had a result, or the slot was asked for anew."""
        self.n_deaths, self.not_before_s, self.why_given_up, self._built_last = 0, 0.0, "", None
        self.n_in_vain = 0


def saying(last_words: str) -> str:
    """The last line of a worker's output, to go on a sentence with; "" if there is none."""
    line = last_words.strip().rpartition("\n")[2]
    return f", saying: {line}" if line else ""
