"""Clients trained together: their parameters are stacked, and each operation of a step serves them all."""
