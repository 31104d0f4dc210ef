"""API keys and metrics."""
