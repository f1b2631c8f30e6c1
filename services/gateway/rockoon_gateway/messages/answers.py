"""Answers to a receive, as they go onto the wire: what each message is, behind its five bytes.

The compiled kernel writes what most messages are, a run of them at once; the rest, and all where
there is no kernel, goes by way of `delivered`. Both say the same.
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
from rockoon_rpc.framing import framed

log = logging.getLogger(__name__)

ANSWER_BYTES_MAX = 8 << 20
"""Of one receive, which has at least one message: all are in memory, with unpacked bodies."""
PIECE_BYTES_MAX = 64 << 10
"""A client that goes has taken the pieces that were written, and none of the others."""


class Answers(NamedTuple):
    """What a receiver is told of its messages."""

    messages: ReceivedMessages
    """Those that can be delivered."""
    frames: bytes
    """Their answers, back to back: each a message of gRPC."""
    ends: list[int]
    """Where each of them ends."""
    left: ReceivedMessages
    """Those for which there was no room."""

    def pieces(self, bytes_max: int = PIECE_BYTES_MAX) -> Iterator[tuple[bytes, int]]:
        """The frames, cut between messages where they are more than so many bytes; and how many
        each piece has."""
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
    """Write answers. What cannot be delivered is left out, and logged.

    Args:
        received: what the engine gave.
        topic: what the receiver asked for.
        valid_until_ms: how long receipt handles count, epoch milliseconds; 0: they are renewed.
        bytes_max: what is written behind so many bytes is one message at most.
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
    """How many of a run there is room for, by what is stored of them."""
    if run.batch.size_bytes <= room:
        return len(run.offsets)
    stored = run.batch.columns.lengths[np.asarray(run.indices)]
    return int(np.searchsorted(np.cumsum(stored, dtype=np.int64), room, side="right"))


def _by_kernel(run: ReceivedRun, topic: bytes, valid_until_ms: int) -> tuple[bytes, list[int], int]:
    """Answers of a run, where each ends, and how many are left out, which take no bytes."""
    count = len(run.offsets)
    is_usual = not (is_dlq_topic(run.queue.topic) or len(run.batch.columns.damaged))
    if kernel.native is None or not is_usual:
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
    """The same with what the kernel has left out, while there is room, and how many of the run that
    are; what cannot be delivered is in none of the others."""
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
        # It is visible again when its time is over, until its attempts are used up.
        log.error("%s cannot be delivered: %s", message.receipt.text(), failure)  # noqa: TRY400
        return b""
    except Exception:
        # One message, whatever it is, keeps none from others.
        log.exception("%s cannot be delivered, for a reason no one foresaw", message.receipt.text())
        return b""
    return framed(ReceiveMessageResponse(message=wire).SerializeToString())
