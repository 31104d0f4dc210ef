"""FastChat's workers."""
