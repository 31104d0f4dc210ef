"""Models that we run, a room for each engine; each runs in a child process, and only that knows the library."""
