"""Gangs: one function on several devices at once, in a process group that can communicate."""
