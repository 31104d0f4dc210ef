"""Engines: models run by unilect, a package for each engine; each runs in a child process, which alone imports the library."""
