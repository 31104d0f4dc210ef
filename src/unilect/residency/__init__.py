"""
The models that are in memory: as many as fit, exchanged for those that are asked for, and a reason for everything that happens.

Whoever starts a model has it `residency.Residency` give a place first. `policy` chooses who goes, `ledger` has the bytes, `events` the reasons.
"""
