"""Transport: messages, gateway, retries, and the adapter for Flower."""
