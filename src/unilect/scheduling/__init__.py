"""The choice of a backend, and of whose turn it is: pools, breakers, affinity, queues."""
