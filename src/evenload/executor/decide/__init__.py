"""What decides in a run: the scheduler and what it knows. No clock, no process, no device."""
