"""Violation of a promise, found in a run."""


class Violation(AssertionError):
    """An entry was lost, undone, or acknowledged twice."""
