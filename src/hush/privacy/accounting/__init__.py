"""Privacy accounting: from events to epsilon, and from a budget to noise."""
