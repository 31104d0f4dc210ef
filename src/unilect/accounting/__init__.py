"""The books of requests: the account, the ledger, metrics, traces, failures."""
