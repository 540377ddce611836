"""The job file: read, checked as a whole, and turned into values."""
