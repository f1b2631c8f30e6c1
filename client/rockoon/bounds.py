"""Checks of options, timestamps and texts (valid Unicode) at the call that passes them."""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from operator import index
from typing import Any, TypeVar

from rockoon.errors import InvalidArgument, InvalidGroupName
from rockoon_core.valid_text import encoding_fault, text_fault

# Epoch seconds have ten digits from 2001 to 2286.
_SECONDS_MIN = 10**9
_SECONDS_MAX = 10**10 - 1
_MS_MAX = 10**13 - 1


def check_bounds(options: object, bounds: Mapping[str, tuple[float, float]]) -> None:
    """Check numeric attributes of an options object. `bounds`: attribute name → smallest and
    largest valid value. Raises InvalidArgument: an attribute is out of its bounds."""
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


Checked = TypeVar("Checked")


def check_text(what: str, text: str) -> str:
    """Return the text. `what`: name of the argument, for the error. Raises InvalidArgument: the
    text is not valid Unicode."""
    if fault := text_fault(text):
        raise InvalidArgument(reason=f"{what}: {fault}")
    return text


def check_group_text(group: str) -> str:
    """Return the name of a group. Raises InvalidGroupName: the name is not valid Unicode.
    Nameservers check all other rules."""
    if fault := text_fault(group):
        raise InvalidGroupName(group=group, reason=fault)
    return group


def refuses_invalid_text(cls: type[Checked]) -> type[Checked]:
    """Class decorator: public coroutines raise InvalidArgument for text that is not valid Unicode.

    Protobuf raises UnicodeEncodeError for a request with this text. The methods must not call
    functions of the program, which may raise UnicodeEncodeError for other reasons.
    """
    for name, method in list(vars(cls).items()):
        if inspect.iscoroutinefunction(method) and not name.startswith("_"):
            setattr(cls, name, _checked(method))
    return cls


def _checked(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    async def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            return await method(*args, **kwargs)
        except UnicodeEncodeError as failure:
            raise InvalidArgument(reason=encoding_fault(failure)) from None

    return checked
