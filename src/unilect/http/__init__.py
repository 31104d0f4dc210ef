"""The HTTP client for backends."""
