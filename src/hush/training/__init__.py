"""Training: DP-SGD for many clients at once."""
