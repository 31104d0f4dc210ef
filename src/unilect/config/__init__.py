"""What the operator says: files, variables and flags, checked; it knows no backend."""
