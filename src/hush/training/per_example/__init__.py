"""Per-example gradients, clipped and summed, for many clients at once."""
