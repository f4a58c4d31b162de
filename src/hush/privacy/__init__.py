"""Differential privacy: policies, plans, accounting, noise, and the ledger."""
