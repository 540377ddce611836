"""Inputs that lie elsewhere: local copies of remote files."""
