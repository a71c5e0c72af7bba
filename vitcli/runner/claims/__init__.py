"""The statements of the three sources, and a verdict on each claim and each result."""
