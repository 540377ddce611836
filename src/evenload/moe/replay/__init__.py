"""Replays of recorded traffic under several strategies, as figures and as a page."""
