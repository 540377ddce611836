"""What a placement would have done on recorded traffic, as figures and as a page."""
