"""Former names of arguments and methods: they work for a version, with a DeprecationWarning."""

import warnings

from rockoon.errors import InvalidArgument


def renamed_key(key: str, ordering_key: str | None) -> str:
    """The ordering key of a call that names it `key`, as it was called before.

    Raises:
        InvalidArgument: both are given.
    """
    if ordering_key is not None:
        raise InvalidArgument(reason="key is the former name of ordering_key: give one of them")
    warnings.warn("key= is now ordering_key=", DeprecationWarning, stacklevel=3)
    return key
