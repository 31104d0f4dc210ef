"""Support of parameters: which a backend honours, and which are refused, reported or emulated."""
