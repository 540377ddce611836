"""The parts of the HTML report: each makes the data of one figure or table from events."""
