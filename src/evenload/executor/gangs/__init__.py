"""Ranks: one function on several devices at once, in a group that can talk."""
