"""Statements of the store, as functions of a connection in a transaction; each is one text for SQLite and PostgreSQL."""
