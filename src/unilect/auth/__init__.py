"""API keys: secrets, the keys that are known, and who a request is from."""
