"""What a caller hands in and gets back: tasks, recipes, optimizers, batches, results."""
