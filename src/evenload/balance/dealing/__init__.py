"""Dealing items to free devices: items that wait, chunks in flight, and the policy's decision."""
