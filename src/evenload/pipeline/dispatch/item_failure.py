"""Why an item went no further."""

import re
from dataclasses import dataclass
from pathlib import Path

_PLACE = re.compile(r'^ *File "([^"\n]+)", line (\d+)', re.MULTILINE)
_OURS = ("<", str(Path(__file__).parents[2]), str(Path(re.__file__).parents[1]))  # and Python's own
_CELL = "<ipython-input"


@dataclass(frozen=True, slots=True)
class ItemFailure:
    """The reason why an item went no further. ``type`` is the exception's; ``traceback`` is the worker's,
    for people.
    """

    stage: str
    type: str
    message: str
    traceback: str = ""

    @property
    def place(self) -> str:
        """File and line of the user's code that came last in the traceback; "" if none of it did."""
        found = _PLACE.findall(self.traceback)
        others = [one for one in found if not one[0].startswith(_OURS) or one[0].startswith(_CELL)]
        own = [one for one in others if "site-packages" not in one[0]]
        return " line ".join(own[-1]) if own else ""

    @property
    def text(self) -> str:
        """The error with its place."""
        return f"{self.type}: {self.message}" + (f" ({self.place})" if self.place else "")

    def __str__(self) -> str:
        return f"{self.stage}: {self.text}"

    def to_json(self) -> dict[str, str]:
        return {"stage": self.stage, "type": self.type, "message": self.message}
