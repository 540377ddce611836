"""The end of a run: a row for each item, its figures, and who is told."""
