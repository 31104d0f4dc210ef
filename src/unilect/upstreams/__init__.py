"""Servers that already run, one file per protocol. Only this package knows aiohttp's client."""
