"""Sizes that nobody gave: what an item costs, learned from what it is."""
