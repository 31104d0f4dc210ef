"""Storage beyond a request: stored responses and conversations, API keys, and the ledger, in one database. It knows neither HTTP nor models."""
