"""The HTTP client towards backends."""
