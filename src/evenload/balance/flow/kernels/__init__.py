"""The routing kernels, compiled by numba."""
