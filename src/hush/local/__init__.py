"""A client's training: clipped per-example gradients, and DP-SGD around them."""
