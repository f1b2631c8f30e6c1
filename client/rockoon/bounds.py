"""Bounds of options: a number that cannot be meant is refused where it is given."""

from collections.abc import Mapping

from rockoon.errors import InvalidArgument


def check_bounds(options: object, bounds: Mapping[str, tuple[float, float]]) -> None:
    """Look at the attributes of an options object.

    Args:
        options: whose.
        bounds: by name, the smallest and the largest that is allowed.

    Raises:
        InvalidArgument: one is out of its bounds.
    """
    for name, (low, high) in bounds.items():
        value = getattr(options, name)
        if not low <= value <= high:
            raise InvalidArgument(reason=f"{name} is {value}, not between {low} and {high}")
