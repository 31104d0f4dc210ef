"""From a model's name to an answer: models, their backends, and the choice among them."""
