"""Limits of the entries in one call, which servers check and callers observe. Pure."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")

QUEUES_PER_CALL_MAX = 4096
"""Limit of the queues in a call; brokers and offset services refuse more."""
WISHES_PER_CALL_MAX = 1024
"""Limit of the wishes (requests of receivers for messages) in an Acquire call; the offset service
refuses more."""
REPORTED_FILTER_BYTES_MAX = 1024
"""Limit of a filter that a receiver reports in an Acquire call, bytes; receivers shorten longer
filters."""


def in_calls(items: Iterable[Item], items_max: int = QUEUES_PER_CALL_MAX) -> Iterator[list[Item]]:
    """Split the entries of a bulk call into lists for several calls, in order.

    Args:
        items: queues, or entries about one queue each.
        items_max: maximum length of a list.
    """
    rest = iter(items)
    while some := list(islice(rest, items_max)):
        yield some
