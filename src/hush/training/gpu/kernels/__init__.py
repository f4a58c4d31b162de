"""Triton kernels, by what they compute. This package can be imported only where Triton is installed."""

from hush.training.gpu.kernels import convolution, row_squares, sampling, update
from hush.training.gpu.linear import launch as linear
from hush.training.gpu.pooled_cnn import launch as pooled_cnn

__all__ = ["convolution", "linear", "pooled_cnn", "row_squares", "sampling", "update"]
