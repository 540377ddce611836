"""Deciding what a run does next, without a clock, a process or a device: the scheduler and its values."""
