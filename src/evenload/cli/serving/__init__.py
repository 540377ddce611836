"""``evenload zk serve``: proofs over HTTP."""
