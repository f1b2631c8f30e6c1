"""Violation of a promise, found in a run."""


class Violation(AssertionError):
    """Something was lost, taken back, or told twice."""
