"""The tasks of a pipeline that wait: in which order they run, which of them together, and which alone."""
