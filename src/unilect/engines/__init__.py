"""Models that we run, one file per engine; each runs in a child process. Only engines/x.py knows library x."""
