"""From a model's name to an answer: models, their backends, and which of them is asked."""
