"""Configurations of other programs as one of unilect: `unilect config import`."""
