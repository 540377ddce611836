"""``evenload simulate``: what a fleet of devices would do with given items."""
