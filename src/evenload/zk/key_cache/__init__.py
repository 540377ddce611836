"""Proving keys kept for the next process: checked, converted, and mapped into memory.

An entry is found by what the key's file contains, not by its name. ``cache.kept_key`` is the way in.
"""
