"""Checks of a whole job that need more than one of its sections: names, settings without effect."""
