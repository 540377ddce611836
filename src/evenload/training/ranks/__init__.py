"""The ranks of a training: small exchanges between them, and settings on which they agree."""
