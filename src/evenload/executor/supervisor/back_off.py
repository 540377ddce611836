"""When a worker that died is replaced, and when that is no use: a pure value, without clock or process."""

from collections.abc import Hashable
from dataclasses import dataclass

MOST_EARLY_DEATHS = 3
FIRST_PAUSE_S = 0.2  # before the second attempt to start a worker; doubles


@dataclass(slots=True)
class BackOff:
    """A slot's workers that died in a row before one had a result, and when the next may start.

    why_given_up  why there will be no other worker, "" while there may be
    """

    n_deaths: int = 0
    not_before_s: float = 0.0
    why_given_up: str = ""
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

    def forgive(self) -> None:
        """Count from zero again: a worker had a result, or the slot was asked for anew."""
        self.n_deaths, self.not_before_s, self.why_given_up, self._built_last = 0, 0.0, "", None


def saying(last_words: str) -> str:
    """The last line of a worker's output, to go on a sentence with; "" if there is none."""
    line = last_words.strip().rpartition("\n")[2]
    return f", saying: {line}" if line else ""
