"""From a client's rows to batches in memory."""
