"""The lines with which client programs use a server: of a server's address, its models and its key, without a look at this machine."""
