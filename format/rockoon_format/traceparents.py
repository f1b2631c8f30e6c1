"""Trace contexts in stored records, found without looking at a record. Pure.

A message's context is its property `traceparent`, in the form of W3C Trace Context.
"""

from rockoon_format.properties import TRACEPARENT

TRACEPARENT_BYTES = 55
# A reader that catches up pulls megabytes at a time.
SEARCHED_BYTES_MAX = 64 << 10

TRACEPARENT_MARK = f"{TRACEPARENT}\x01".encode()
"""What stands in front of a context in a record."""


def find_traceparents(records: bytes, count_max: int) -> list[str]:
    """The contexts in the first `SEARCHED_BYTES_MAX` of stored records, as they were written.

    A search of the bytes: no message is looked at. A body that looks like a context counts as one.

    Args:
        records: back to back.
        count_max: further ones are left out.
    """
    found: list[str] = []
    at = records.find(TRACEPARENT_MARK, 0, SEARCHED_BYTES_MAX)
    while at >= 0 and len(found) < count_max:
        at += len(TRACEPARENT_MARK)
        found.append(records[at : at + TRACEPARENT_BYTES].decode(errors="replace"))
        at = records.find(TRACEPARENT_MARK, at, SEARCHED_BYTES_MAX)
    return found
