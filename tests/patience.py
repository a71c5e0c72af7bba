"""The longest time that a test waits for another process."""

HANG = 900
"""Seconds after which a process counts as hung. No test depends on speed."""
