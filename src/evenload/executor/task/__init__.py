"""The user's code: how it is packed, checked, called, and how its failure is told."""
