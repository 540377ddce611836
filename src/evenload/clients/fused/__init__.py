"""Many clients as one: their parameters stacked, each step one operation for all."""
