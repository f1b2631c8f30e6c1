"""Transaction ids: the position of a half message, as text. Pure.

A client sends the id back with EndTransaction, maybe to another gateway, or to a restarted one: so
the id alone identifies the half message, and gateways keep no table.
"""

import re
from typing import NamedTuple

# A 64-bit positive integer in hexadecimal, and the name of a node.
_FORM = re.compile(r"([0-7][0-9a-f]{15})@([A-Za-z0-9._-]{1,100})", re.ASCII)


class TransactionPosition(NamedTuple):
    """Position of a half message in its broker."""

    broker: str
    physical_offset: int


def transaction_id(broker: str, physical_offset: int) -> str:
    """Return the id of a half message's transaction.

    Args:
        broker: the broker's name.
        physical_offset: of the half message's record; a committed message's record has it too.
    """
    return f"{physical_offset:016x}@{broker}"


def parse_transaction_id(text: str) -> TransactionPosition | None:
    """Parse a transaction id; None if it is malformed."""
    found = _FORM.fullmatch(text)
    return TransactionPosition(found[2], int(found[1], 16)) if found else None
