"""Compiled parts of placing: EPLB's policy, and the searches beyond it. Import them only with numba."""
