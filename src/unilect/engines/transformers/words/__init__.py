"""From requests to prompts, and from tokens to text."""
