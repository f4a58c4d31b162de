"""Flower's quickstart with a privacy budget for every client."""
