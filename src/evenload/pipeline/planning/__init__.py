"""Which device runs which stage, with which layers: candidates, improvement, bound."""
