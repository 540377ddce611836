"""Where each place of a job was written, so that a fault in it names its line or its option."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evenload.errors import SpecError

__all__ = ["Origins", "dotted"]

Place = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Origins:
    """The origins of a job: its file, the line of each place there, and the options that set others.

    Two jobs are equal wherever they were written.
    """

    source: str = field(default="job", compare=False)
    lines: Mapping[Place, int] = field(default_factory=dict, compare=False)
    options: Mapping[Place, str] = field(default_factory=dict, compare=False)

    def error(self, faults: Sequence[tuple[Place, str]]) -> SpecError:
        """Return an error that tells all faults by line; one that several places share comes once."""
        located = sorted((*self._of(place, text), dotted(place), text) for place, text in faults)
        shared: dict[tuple[str, str], list[str]] = {}
        for _, origin, place, text in located:
            shared.setdefault((origin, text), []).append(place)
        told = [
            (f"{', '.join(places)} ({origin})" if origin else ", ".join(places), text)
            for (origin, text), places in shared.items()
        ]
        return SpecError(self.source, told)

    def _of(self, place: Place, fault: str) -> tuple[int, str]:
        """Return the line (0 for none) of ``place`` and how it is named; ``fault`` is said of it."""
        for at, option in self.options.items():
            if place[: len(at)] == at or (at[: len(place)] == place and repr(at[-1]) in fault):
                return 0, option
        line = self._line_of(place)
        return line, f"line {line}" if line else ""

    def _line_of(self, place: Place) -> int:
        """Return the line of a place, or of the nearest place above it that the file has; 0 for none."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 0)


def dotted(place: Place) -> str:
    """Return a place as text, such as ``stages[1].when``."""
    return (
        "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
        or "(file)"
    )
