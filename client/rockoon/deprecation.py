"""Former names of arguments and methods: they work for a version, with a DeprecationWarning."""

import inspect
import warnings

from rockoon.errors import InvalidArgument
from rockoon.producer.options import HalfMessageOptions, SendManyOptions, SendOptions

# Modules between a program and the place where a former name is found.
_NOT_HIS = ("rockoon", "contextlib")


def renamed_key(key: str, ordering_key: str | None) -> str:
    """The ordering key of a call that names it `key`, as it was called before.

    Raises:
        InvalidArgument: both are given.
    """
    if ordering_key is not None:
        raise InvalidArgument(reason="key is the former name of ordering_key: give one of them")
    warnings.warn("key= is now ordering_key=", DeprecationWarning, stacklevel=_caller_level())
    return key


def rename_key(options: SendOptions | SendManyOptions | HalfMessageOptions) -> None:
    """As `renamed_key`, in options for another thread, whose stack would not have the caller."""
    key = options.pop("key", None)
    if key is not None:
        options["ordering_key"] = renamed_key(key, options.get("ordering_key"))


def _caller_level() -> int:
    """How far up the program's own code is: a warning that names a line of ours is not shown."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_HIS:
        level, frame = level + 1, frame.f_back
    return level - 1
