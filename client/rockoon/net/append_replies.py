"""Decoding of append stream replies. The compiled kernel decodes replies of acknowledged batches
only, because reading a field of a protobuf message costs Python as much as a function call."""

from typing import NamedTuple

from rockoon_format import kernel
from rockoon_proto.v1 import broker_pb2
from rockoon_proto.v1.broker_pb2 import AppendReply


class StoredBatch(NamedTuple):
    """Position of a stored batch in queue and log; has the field names of AppendReply and
    Appended."""

    request_id: int
    first_queue_offset: int
    first_physical_offset: int
    messages: int
    store_timestamp_ms: int
    store_host: bytes


Appended = broker_pb2.Appended | StoredBatch
Answer = AppendReply | StoredBatch
Answers = AppendReply | list[StoredBatch]
"""The replies in one message of an append stream; each reply belongs to one batch."""


def append_reply(message: bytes) -> Answers:
    """Decode a message of an append stream.

    Raises:
        DecodeError: the message is invalid.
    """
    rows = kernel.native.appended(message)
    if rows is not None:
        if len(rows) == 1:
            # Most: a comprehension is a call of its own.
            return [tuple.__new__(StoredBatch, rows[0])]
        return [tuple.__new__(StoredBatch, row) for row in rows]
    return AppendReply.FromString(message)
