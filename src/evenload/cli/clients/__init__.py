"""``evenload clients``: federated rounds of a job file, and which strategy is fastest for them."""
