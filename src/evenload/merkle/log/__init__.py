"""Transparency logs: leaves that are only ever added, under signed checkpoints, in the formats of C2SP."""

from evenload._optional import refuse_windows

refuse_windows("a transparency log")
