"""Compiled parts of the search for a placement. Import them only where numba is installed."""
