"""The values that callers give and get: recipes, optimizers, strategies, results; and tasks and batches."""
