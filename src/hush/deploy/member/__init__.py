"""A member: its policy, its data, its process, and its disclosures."""
