"""Former names of arguments; they work for one version, with a DeprecationWarning."""

import inspect
import warnings

from rockoon.errors import InvalidArgument
from rockoon.producer.options import HalfMessageOptions, SendManyOptions, SendOptions

# Modules that may be between the program and the use of a former name on the stack.
_NOT_HIS = ("rockoon", "contextlib")


def renamed_key(key: str, ordering_key: str | None) -> str:
    """Return the ordering key of a call that uses its former name `key`.

    Raises:
        InvalidArgument: both names are used.
    """
    if ordering_key is not None:
        raise InvalidArgument(reason="key is the former name of ordering_key: use only the latter")
    warnings.warn("key= is now ordering_key=", DeprecationWarning, stacklevel=_caller_level())
    return key


def rename_key(options: SendOptions | SendManyOptions | HalfMessageOptions) -> None:
    """Rename `key` in options for another thread, whose stack does not contain the caller."""
    key = options.pop("key", None)
    if key is not None:
        options["ordering_key"] = renamed_key(key, options.get("ordering_key"))


def _caller_level() -> int:
    """Return the stack level of the program's code, for which Python shows the warning."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_HIS:
        level, frame = level + 1, frame.f_back
    return level - 1
