"""Rewrites of a step's graph and of the code that torch's compiler makes for it: faster, never needed."""
