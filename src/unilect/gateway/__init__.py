"""Who may ask, how much, and what it came to."""
