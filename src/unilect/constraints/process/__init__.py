"""The helper process that compiles constraints, with limits."""
