"""Helpers of the tests: small federations, processes to kill, made-up runs, and modules to judge."""
