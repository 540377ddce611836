"""One run: its items in, chunks out, and what becomes of them."""
