"""Answers of an append stream. The compiled kernel reads those that say where batches are, and
nothing else: a field of a protobuf message costs Python as much as a call."""

from typing import NamedTuple

from rockoon_format import kernel
from rockoon_proto.v1 import broker_pb2
from rockoon_proto.v1.broker_pb2 import AppendReply


class Stored(NamedTuple):
    """Where a batch is that was stored together: what an AppendReply and its `appended` say, under
    the names of their fields."""

    request_id: int
    first_queue_offset: int
    first_physical_offset: int
    messages: int
    store_timestamp_ms: int
    store_host: bytes


Appended = broker_pb2.Appended | Stored
Answer = AppendReply | Stored
Answers = AppendReply | list[Stored]
"""To all batches of a message."""


def append_reply(message: bytes) -> Answers:
    """What a message of an append stream answers.

    Raises:
        DecodeError: nothing.
    """
    if kernel.native is not None:
        rows = kernel.native.appended(message)
        if rows is not None:
            if len(rows) == 1:
                # Most: a comprehension is a call of its own.
                return [tuple.__new__(Stored, rows[0])]
            return [tuple.__new__(Stored, row) for row in rows]
    return AppendReply.FromString(message)
