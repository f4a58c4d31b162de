"""Kernels for networks of pooled convolutions and a linear layer."""
