"""Tests of `hush.training.gpu.kernels`."""
