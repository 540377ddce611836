"""Placements found by search: the exact router judges each move."""
