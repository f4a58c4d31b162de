"""Deployment of a federation across machines: coordinator, members, and the transport between them."""
