"""A proxy of a real broker that loses, doubles, reorders and invents messages.

To a producer it is the broker, and it acknowledges everything. The test chooses the fault of each
batch: a checker must notice all of them.
"""

from collections.abc import AsyncIterator, Callable
from enum import Enum
from typing import Any

import numpy as np
from grpc import aio

from load import payload
from rockoon_format.batch import decode_columns, encode_batch
from rockoon_proto.v1 import broker_pb2 as pb
from support.lossy_broker import LossyBroker

MADE_UP_AT = 1 << 20
"""Sequence numbers of messages that no sender has sent."""


class Deed(Enum):
    """Faults of an acknowledged batch."""

    DROP = "it is not stored"
    DOUBLE = "it is stored twice"
    TURN = "its messages are stored in the opposite order"
    INVENT = "one more message of the same stream is stored, which its sender will never send"
    DAMAGE = "its last message is stored with another number"


class DishonestBroker(LossyBroker):
    """An async context manager.

    Args:
        channel: to the broker.
        deed: called for every batch; returns its fault. None: no fault.

    Attributes:
        done: number of messages by fault.
    """

    def __init__(
        self, channel: aio.Channel, deed: Callable[[pb.AppendRequest], Deed | None]
    ) -> None:
        super().__init__(channel, lambda _: None)
        self._deed = deed
        self._last = pb.AppendReply()
        self.done = dict.fromkeys(Deed, 0)

    async def AppendStream(self, requests: Any, _: Any) -> AsyncIterator[pb.AppendReply]:
        async for request in requests:
            deed = self._deed(request)
            reply = await self._answer(request, deed)
            reply.request_id = request.request_id
            self._last = reply
            yield reply

    async def _answer(self, request: pb.AppendRequest, deed: Deed | None) -> pb.AppendReply:
        bodies = list(decode_columns(request.frames, _lengths(request)).bodies)
        if deed is None:
            return await self._store(request)
        self.done[deed] += 1 if deed in (Deed.INVENT, Deed.DAMAGE) else len(bodies)
        if deed is Deed.DROP:
            answer = pb.AppendReply()
            answer.CopyFrom(self._last)
            return answer
        if deed is Deed.TURN:
            return await self._store(_with(request, bodies[::-1]))
        if deed is Deed.DAMAGE:
            bodies[-1] = bodies[-1][:16] + b"\xff" + bodies[-1][17:]
            return await self._store(_with(request, bodies))
        answer = await self._store(request)
        more = request if deed is Deed.DOUBLE else _with(request, [_made_up(bodies[0])])
        await self._store(more)
        return answer

    async def _store(self, request: pb.AppendRequest) -> pb.AppendReply:
        reply: pb.AppendReply = await self._stub.Append(request)
        return reply


def _made_up(body: bytes) -> bytes:
    header = np.frombuffer(body[: payload.HEADER_BYTES], payload.HEADER)[0]
    number = MADE_UP_AT + int(header["sequence"])
    (made,) = payload.encode(
        int(header["run"]), int(header["stream"]), number, np.zeros(1, np.int64), len(body)
    )
    return made


def _with(request: pb.AppendRequest, bodies: list[bytes]) -> pb.AppendRequest:
    """Return a request with other messages."""
    columns = decode_columns(request.frames, _lengths(request))
    frames, lengths = encode_batch(
        request.topic.encode(),
        request.queue_id,
        bodies,
        list(columns.properties_bytes[: len(bodies)]),
        0,
        columns.born_hosts[0],
    )
    made = pb.AppendRequest()
    made.CopyFrom(request)
    made.frames = frames
    made.record_lengths = lengths.astype("<u4").tobytes()
    return made


def _lengths(request: pb.AppendRequest) -> list[int]:
    return np.frombuffer(request.record_lengths, "<u4").tolist()
