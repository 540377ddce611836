"""``evenload.frames.map``: see ``evenload.integrations.frames``."""

from evenload.integrations.frames import map

__all__ = ["map"]
