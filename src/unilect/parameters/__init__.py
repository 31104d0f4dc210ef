"""Honest parameters: which of them a backend honours, and what happens to the others."""
