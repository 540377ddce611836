"""Transparency logs: leaves that are only ever added, under signed checkpoints, in the formats of C2SP."""
