"""Kernels that plan clones of experts, compiled."""
