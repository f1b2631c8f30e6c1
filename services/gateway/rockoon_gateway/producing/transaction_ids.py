"""Transaction ids: where a half message waits, as text. Pure.

A client hands the id back with EndTransaction, maybe to another gateway, or to this one after it
was restarted: so the id alone says what is to be ended, and nobody keeps a table.
"""

import re
from typing import NamedTuple

# A positive integer of 64 bits with a sign, and the name of a node.
_FORM = re.compile(r"([0-7][0-9a-f]{15})@([A-Za-z0-9._-]{1,100})", re.ASCII)


class HalfPlace(NamedTuple):
    """Where a half message waits."""

    broker: str
    physical_offset: int


def transaction_id(broker: str, physical_offset: int) -> str:
    """The id of the transaction of a half message.

    Args:
        broker: the broker's name.
        physical_offset: of the half message's record; a committed message's record names it.
    """
    return f"{physical_offset:016x}@{broker}"


def parse_transaction_id(text: str) -> HalfPlace | None:
    """The place that an id says; None when it is none."""
    found = _FORM.fullmatch(text)
    return HalfPlace(found[2], int(found[1], 16)) if found else None
