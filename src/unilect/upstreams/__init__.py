"""Servers that already run, one file per protocol."""
