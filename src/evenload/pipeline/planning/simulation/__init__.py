"""A simulated run of a plan: what it takes, in which workers that are alike go in step."""
