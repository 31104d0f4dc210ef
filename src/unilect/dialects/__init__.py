"""
The APIs for clients, one package each: a body in, a typed request out; events in, bytes out.

A dialect is an entry point in the group `unilect.dialects`: a module with `routes(site) -> list[Route]`, called once for each address.
It stands on `unilect.web`, and knows no backend.
"""
