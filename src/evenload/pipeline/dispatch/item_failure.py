"""Why an item went no further."""

from dataclasses import dataclass

__all__ = ["ItemFailure"]


@dataclass(frozen=True, slots=True)
class ItemFailure:
    """The reason why an item went no further. ``type`` is the exception's; ``traceback`` is the worker's,
    for people.
    """

    stage: str
    type: str
    message: str
    traceback: str = ""

    def to_json(self) -> dict[str, str]:
        return {"stage": self.stage, "type": self.type, "message": self.message}
