"""``evenload map``: a function over the lines of a file."""
