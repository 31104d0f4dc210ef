"""Servers that already run, a package for each protocol."""
