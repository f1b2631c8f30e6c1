"""Finds trace contexts in stored records without decoding them. No I/O.

The trace context of a message is its property `traceparent`, in the form of W3C Trace Context.
"""

from rockoon_format.properties import TRACEPARENT

TRACEPARENT_BYTES = 55
# A consumer with a lag pulls megabytes per call; only the start is searched.
SEARCHED_BYTES_MAX = 64 << 10

TRACEPARENT_MARK = f"{TRACEPARENT}\x01".encode()
"""The bytes before a trace context in a record."""


def find_traceparents(records: bytes, count_max: int) -> list[str]:
    """The trace contexts in the first `SEARCHED_BYTES_MAX` bytes of stored records.

    Searches the bytes and decodes no message. Text in a body that looks like one counts as well.

    Args:
        records: records back to back.
        count_max: maximum number of results.
    """
    found: list[str] = []
    at = records.find(TRACEPARENT_MARK, 0, SEARCHED_BYTES_MAX)
    while at >= 0 and len(found) < count_max:
        at += len(TRACEPARENT_MARK)
        found.append(records[at : at + TRACEPARENT_BYTES].decode(errors="replace"))
        at = records.find(TRACEPARENT_MARK, at, SEARCHED_BYTES_MAX)
    return found
