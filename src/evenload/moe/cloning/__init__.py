"""Clones of experts for each batch: which, where, and how many tokens each takes."""
