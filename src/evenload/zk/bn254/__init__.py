"""Groth16 in plain Python integers: slow, short, and what every kernel is compared with. Needs no extra."""
