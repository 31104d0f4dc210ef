"""What models are told of tools and turns, and how their calls are read."""
