"""Kernels for a model that is one linear layer."""
