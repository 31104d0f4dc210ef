"""Servers that speak OpenAI's API."""
