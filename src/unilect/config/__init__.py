"""The operator's settings: files, variables and flags, checked; it knows no backend."""
