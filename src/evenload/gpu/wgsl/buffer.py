"""A part of an adapter's memory, as kernels bind it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evenload.errors import ConfigError

__all__ = ["BINDING_ALIGNMENT", "Buffer", "binding_entries"]

BINDING_ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class Buffer:
    """A storage buffer, or the part of one from byte ``offset``; good until the context is opened again."""

    raw: Any
    offset: int
    n_bytes: int

    def part(self, offset: int, n_bytes: int) -> "Buffer":
        """A part to bind. Raises ConfigError unless it lies within, at a multiple of 256 bytes."""
        if offset % BINDING_ALIGNMENT or offset < 0 or n_bytes < 1 or offset + n_bytes > self.n_bytes:
            raise ConfigError(
                f"bytes {offset}..{offset + n_bytes} of a buffer of {self.n_bytes}",
                hint=f"a part begins at a multiple of {BINDING_ALIGNMENT}",
            )
        return Buffer(self.raw, self.offset + offset, n_bytes)


def binding_entries(buffers: Sequence[Buffer]) -> list[dict[str, Any]]:
    """Entries of a bind group for ``buffers``, in order."""
    return [
        {"binding": k, "resource": {"buffer": b.raw, "offset": b.offset, "size": b.n_bytes}}
        for k, b in enumerate(buffers)
    ]
