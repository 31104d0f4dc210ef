"""From a request to its answer: attempts, answers that go on after a failure, answers that are kept for who comes back."""
