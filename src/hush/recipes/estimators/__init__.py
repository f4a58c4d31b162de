"""Estimators that the server applies to updates: noise, heterogeneity, clusters, subspaces."""
