"""Commands about a job file and its runs."""
