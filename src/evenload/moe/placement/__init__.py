"""Copies of experts and the GPUs that they lie on, in one pass."""
