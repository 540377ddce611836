"""``evenload.datasets.map``: see ``evenload.integrations.datasets``."""

from evenload.integrations.datasets import map

__all__ = ["map"]
