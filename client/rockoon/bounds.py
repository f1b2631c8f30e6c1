"""Bounds of options: a number that cannot be meant is refused where it is given."""

from collections.abc import Mapping
from operator import index

from rockoon.errors import InvalidArgument

# Epoch seconds have ten digits from 2001 to 2286.
_SECONDS_MIN = 10**9
_SECONDS_MAX = 10**10 - 1
_MS_MAX = 10**13 - 1


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


def check_epoch_ms(name: str, epoch_ms: int) -> int:
    """Return a time in epoch milliseconds.

    Args:
        name: of the argument.
        epoch_ms: the time. Ten digits are refused: they are epoch seconds of our days, and epoch
            milliseconds of early 1970.

    Raises:
        InvalidArgument: it is no whole number, negative, or has ten digits or more than thirteen.
    """
    try:
        whole = index(epoch_ms)
    except TypeError:
        raise InvalidArgument(
            reason=f"{name} is {epoch_ms!r}: epoch milliseconds are a whole number"
        ) from None
    if _SECONDS_MIN <= whole <= _SECONDS_MAX:
        raise InvalidArgument(
            reason=f"{name} is {whole}, which looks like epoch seconds: give epoch milliseconds, "
            f"{whole} * 1000"
        )
    if not 0 <= whole <= _MS_MAX:
        raise InvalidArgument(reason=f"{name} is {whole}, not epoch milliseconds")
    return whole
