"""`unilect connect`: the lines with which a client program uses a running server."""
