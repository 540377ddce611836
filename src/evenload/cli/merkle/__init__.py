"""``evenload merkle``: roots and proofs of files, checked anywhere."""
