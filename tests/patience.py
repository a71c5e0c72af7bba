"""How long a test waits for another process."""

HANG = 900
"""Seconds after which a process counts as hung: nothing here is about speed."""
