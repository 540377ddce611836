"""Certificates of runs: what a run reached, and the proof of its bound."""
