"""Differential privacy: policies, plans, schedules, accounting, noise, and the ledger."""
