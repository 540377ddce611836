"""Shares of the work: which kind of device does how much of each stage, and in what order."""
