"""Replies to a ReceiveMessage call, as gRPC frames: each message serialized after its five-byte
header.

The kernel serializes most messages, a run at a time; `delivered` converts the rest. The results are
equal.
"""

import logging
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from rockoon.receiving.received import ReceivedMessages, ReceivedRun
from rockoon_format import kernel
from rockoon_format.names import is_dlq_topic
from rockoon_format.properties import TRANSIENT_PREFIX
from rockoon_gateway.consuming.handles import Handle
from rockoon_gateway.messages.delivered import UNDELIVERABLE, to_wire
from rockoon_gateway.messages.reserved_names import RESERVED
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Message, Resource
from rockoon_proto.apache.rocketmq.v2.service_pb2 import ReceiveMessageResponse
from rockoon_rpc.session import framed

log = logging.getLogger(__name__)

ANSWER_BYTES_MAX = 8 << 20
"""Maximum bytes of one receive, which has at least one message: all bodies are unpacked in
memory.
"""
PIECE_BYTES_MAX = 64 << 10
"""Maximum bytes of one write. A client that disconnects has received the written pieces, and none
of the rest.
"""


class Answers(NamedTuple):
    """Serialized replies to one ReceiveMessage call."""

    messages: ReceivedMessages
    """Messages whose replies are in `frames`."""
    frames: bytes
    """Replies to the client, concatenated, each a gRPC frame."""
    ends: list[int]
    """Position of the end of each frame in `frames`."""
    left: ReceivedMessages
    """Messages that were not serialized, because they exceed the maximum bytes."""

    def pieces(self, bytes_max: int = PIECE_BYTES_MAX) -> Iterator[tuple[bytes, int]]:
        """Yield the frames in pieces of about `bytes_max`, each with its number of messages. A
        piece ends between two messages.
        """
        if len(self.frames) <= bytes_max and self.ends:
            yield self.frames, len(self.ends)
            return
        first = begin = 0
        while first < len(self.ends):
            end = max(bisect_right(self.ends, begin + bytes_max), first + 1)
            yield self.frames[begin : self.ends[end - 1]], end - first
            first, begin = end, self.ends[end - 1]


def answers_to(
    received: ReceivedMessages,
    topic: Resource,
    valid_until_ms: int,
    bytes_max: int = ANSWER_BYTES_MAX,
) -> Answers:
    """Serialize the replies for received messages. Messages that cannot be delivered are left out
    and logged.

    Args:
        received: from the engine.
        topic: as the receiver named it.
        valid_until_ms: validity of receipt handles, epoch milliseconds; 0: leases are extended.
        bytes_max: after this many bytes at most one more message is written.
    """
    field = Message(topic=topic).SerializeToString()
    runs: list[ReceivedRun] = []
    pieces: list[bytes] = []
    ends: list[int] = []
    size = done = 0
    for each in received.runs:
        room = bytes_max - size
        fitting = _fitting(each, room) or (0 if ends else 1)
        run = each if fitting == len(each.offsets) else each.part(0, fitting)
        frames, own, rare = _by_kernel(run, field, valid_until_ms)
        parts = [run]
        if rare:
            frames, own, parts, fitting = _completed(run, frames, own, topic, valid_until_ms, room)
        runs += parts
        pieces.append(frames)
        ends += [size + end for end in own] if size else own
        size += len(frames)
        done += fitting
        if fitting < len(each.offsets):
            break
    left = received[done:] if done < len(received) else ReceivedMessages()
    return Answers(ReceivedMessages(runs), b"".join(pieces), ends, left)


def _fitting(run: ReceivedRun, room: int) -> int:
    """Return how many messages of a run fit into a number of bytes, by their stored sizes."""
    if run.batch.size_bytes <= room:
        return len(run.offsets)
    stored = run.batch.columns.lengths[np.asarray(run.indices)]
    return int(np.searchsorted(np.cumsum(stored, dtype=np.int64), room, side="right"))


def _by_kernel(run: ReceivedRun, topic: bytes, valid_until_ms: int) -> tuple[bytes, list[int], int]:
    """Serialize a run of messages with the kernel; returns frames, the end of each, and how many
    messages are left out (empty frames).
    """
    count = len(run.offsets)
    is_usual = not (is_dlq_topic(run.queue.topic) or len(run.batch.columns.damaged))
    if not is_usual:
        return b"", [0] * count, count
    made: tuple[bytes, list[int], int] = _writer(kernel.native).framed(
        *run.batch.columns.places(run.indices),
        array("q", run.offsets).tobytes(),
        topic,
        run.queue.broker.encode(),
        run.queue.queue_id,
        run.attempt,
        f"{run.queue}/{run.acquisition}/".encode(),
        f"/{valid_until_ms}".encode(),
    )
    return made


@lru_cache(maxsize=1)
def _writer(native: ModuleType) -> Any:
    return native.DeliveredAnswers([name.encode() for name in RESERVED], TRANSIENT_PREFIX.encode())


def _completed(
    run: ReceivedRun,
    frames: bytes,
    ends: list[int],
    topic: Resource,
    valid_until_ms: int,
    room: int,
) -> tuple[bytes, list[int], list[ReceivedRun], int]:
    """Add the messages that the kernel left out, up to the limit; returns frames, ends, runs, and
    the number of processed messages. Messages that cannot be delivered are dropped."""
    begin = size = 0
    pieces: list[bytes] = []
    own: list[int] = []
    runs: list[ReceivedRun] = []
    for number, end in enumerate(ends):
        if size >= room:
            return b"".join(pieces), own, runs, number
        piece = frames[begin:end] or _framed(run, number, topic, valid_until_ms)
        begin = end
        if piece:
            size += len(piece)
            pieces.append(piece)
            own.append(size)
            runs.append(run.part(number, number + 1))
    return b"".join(pieces), own, runs, len(ends)


def _framed(run: ReceivedRun, number: int, topic: Resource, valid_until_ms: int) -> bytes:
    message = run.message(number)
    handle = Handle(message.receipt, valid_until_ms).text()
    try:
        wire = to_wire(message, topic, attempt=message.attempt, receipt_handle=handle)
    except UNDELIVERABLE as failure:
        # It becomes visible again after its lease, until its attempts are used up.
        log.error("%s cannot be delivered: %s", message.receipt.text(), failure)  # noqa: TRY400
        return b""
    except Exception:
        # One faulty message must not block the rest.
        log.exception("unexpected error while converting %s (bug)", message.receipt.text())
        return b""
    return framed(ReceiveMessageResponse(message=wire).SerializeToString())
