"""Servers of any kind that a command line starts."""
