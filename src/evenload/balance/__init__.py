"""Who does what: pure arithmetic, no clock, no I/O, usable alone."""
