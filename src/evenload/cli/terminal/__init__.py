"""Tables, charts and rows of items as text."""
