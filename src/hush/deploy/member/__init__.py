"""A member: its policy, its data, its process, and what it discloses."""
