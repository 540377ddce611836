"""Who does what next, as pure values: each item's way through the stages, and which worker gets it."""
