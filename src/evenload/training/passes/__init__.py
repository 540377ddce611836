"""Forward and backward passes: micro-batches, marks, times, and what stands against exact gradients."""
