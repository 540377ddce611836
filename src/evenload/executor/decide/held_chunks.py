"""Chunks that devices hold, as the scheduler knows them."""

from typing import NamedTuple

from evenload.executor.decide.instruction import Indices

__all__ = ["HeldChunk", "HungChunk"]


class HeldChunk(NamedTuple):
    """A chunk that a device holds."""

    device: str
    units: Indices
    items: Indices
    singly: bool


class HungChunk(NamedTuple):
    """A chunk whose device is stuck: all but the stuck ``items`` was given to others."""

    held: HeldChunk
    items: list[int]
