"""Checks that texts from a program can be encoded: they must be valid Unicode."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from rockoon.errors import InvalidArgument, InvalidGroupName
from rockoon_core.valid_text import encoding_fault, text_fault

Checked = TypeVar("Checked")


def check_text(what: str, text: str) -> str:
    """Return the text.

    Args:
        what: name of the argument, for the error.
        text: its value.

    Raises:
        InvalidArgument: the text is not valid Unicode.
    """
    if fault := text_fault(text):
        raise InvalidArgument(reason=f"{what}: {fault}")
    return text


def check_group_text(group: str) -> str:
    """Return the name of a group.

    Raises:
        InvalidGroupName: the name is not valid Unicode. Nameservers check all other rules.
    """
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
