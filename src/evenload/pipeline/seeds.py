"""Derive one seed for each item, from the job's seed and the item's id alone."""

from evenload.executor.task.seeds import item_seed

__all__ = ["item_seed"]
