"""Checks of numeric options and timestamps at the call that sets them."""

from collections.abc import Mapping
from operator import index

from rockoon.errors import InvalidArgument

# Epoch seconds have ten digits from 2001 to 2286.
_SECONDS_MIN = 10**9
_SECONDS_MAX = 10**10 - 1
_MS_MAX = 10**13 - 1


def check_bounds(options: object, bounds: Mapping[str, tuple[float, float]]) -> None:
    """Check numeric attributes of an options object.

    Args:
        options: the object.
        bounds: attribute name → smallest and largest valid value.

    Raises:
        InvalidArgument: an attribute is out of its bounds.
    """
    for name, (low, high) in bounds.items():
        value = getattr(options, name)
        if not low <= value <= high:
            raise InvalidArgument(reason=f"{name} is {value}, not between {low} and {high}")


def check_epoch_ms(name: str, epoch_ms: int) -> int:
    """Return a time in epoch milliseconds.

    Args:
        name: name of the argument, for the error.
        epoch_ms: the time. Ten digits are refused: they are epoch seconds of the present, but epoch
            milliseconds of early 1970.

    Raises:
        InvalidArgument: the value is not an integer, is negative, or has ten or more than 13
            digits.
    """
    try:
        whole = index(epoch_ms)
    except TypeError:
        raise InvalidArgument(
            reason=f"{name} is {epoch_ms!r}: epoch milliseconds must be an integer"
        ) from None
    if _SECONDS_MIN <= whole <= _SECONDS_MAX:
        raise InvalidArgument(
            reason=f"{name} is {whole}, which looks like epoch seconds: use epoch milliseconds, "
            f"{whole} * 1000"
        )
    if not 0 <= whole <= _MS_MAX:
        raise InvalidArgument(reason=f"{name} is {whole}, not epoch milliseconds")
    return whole
