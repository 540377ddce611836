"""Audit of what others ran: where the time of devices went, and what other dealing would have reached."""
