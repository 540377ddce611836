"""What a free device gets next: the items, what is under way, and the policy's answer."""
