"""Training on a GPU: captured steps, prefetching, sampling, noise, and kernels."""
