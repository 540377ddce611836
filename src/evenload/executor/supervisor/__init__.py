"""The one place that starts, watches and ends worker processes, for every loop that has some."""
