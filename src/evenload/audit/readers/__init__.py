"""One file for each format of traces; each makes a ``Recording``."""
