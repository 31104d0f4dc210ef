"""From a name to a model: the registry, its sources, discovery, and what a model does to its requests."""
