"""What lost seconds came from: by factor and cause, in words, in bounded memory."""

from collections.abc import Mapping
from types import MappingProxyType

MOST_CAUSES = 64  # of one worker slot; more are put together
OTHERS = "other reasons"
INSIDE = "inside of items of "  # where they wait, or nobody knows what they do


class LossSources:
    """The seconds of one worker slot by what they were lost to: ``(factor, cause) -> seconds``.

    A cause is a short phrase such as ``loading encode``.
    """

    __slots__ = ("seconds",)

    def __init__(self, seconds: Mapping[tuple[str, str], float] = MappingProxyType({})) -> None:
        self.seconds: dict[tuple[str, str], float] = dict(seconds)

    def add(self, factor: str, cause: str, seconds: float) -> None:
        """Count ``seconds``; nothing if there are none."""
        if not seconds > 0:
            return
        key = factor, cause
        if key not in self.seconds and len(self.seconds) >= MOST_CAUSES:
            key = factor, OTHERS
        self.seconds[key] = self.seconds.get(key, 0.0) + seconds
