"""From what a gate chose to which copy serves it: the planner, its exchange between ranks, kernels."""
