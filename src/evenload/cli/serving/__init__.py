"""``evenload prove --serve``: proofs over HTTP."""
