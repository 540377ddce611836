"""One training step of one client, and the same step for clients that share it."""
