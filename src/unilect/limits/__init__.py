"""Limits of keys, owners and models: claims, counters in memory and on Redis, refusals and headers."""
