"""Servers that already run, a room for each protocol."""
