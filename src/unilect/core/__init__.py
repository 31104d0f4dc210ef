"""The vocabulary of the house: requests, events of answers, errors, and the bounds of what is read."""
