"""Clients over threads, streams, processes and machines."""
