"""Read a job file, check it as a whole, and turn it into values."""
