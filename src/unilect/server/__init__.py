"""The process: its addresses, its connections, its routes, its start and its end."""
