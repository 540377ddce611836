"""Commands about mixtures of experts."""
