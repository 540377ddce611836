"""What a stage's result depends on, as digests, and whether one that is there would be computed again."""
