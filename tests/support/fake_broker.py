"""A broker's queues without a log: store times in lists, and the queries about them.

`tests/offset/test_fakes.py` compares it with the real broker.
"""
# ruff: noqa: ARG002 - gRPC passes a request and a context to every method

import asyncio
import bisect
from dataclasses import dataclass, field
from typing import Any

from grpc import aio

from rockoon_core.errors import MessageNotFound, QueueNotFound
from rockoon_format.record import Record, encode_record
from rockoon_proto.v1 import broker_pb2 as pb
from rockoon_proto.v1.broker_pb2_grpc import BrokerServicer, add_BrokerServicer_to_server
from rockoon_runtime.wire import GrpcServer
from support.drains import AT_ONCE
from support.fakes.bulk_calls import check_bulk


@dataclass
class FakeQueue:
    """A queue: the store time of every message that remains, from offset `first` on."""

    first: int = 0
    times_ms: list[int] = field(default_factory=list)
    in_memory: bool = True
    # Time until retention deletes the existing messages.
    loss_in_ms: int = 72 * 3_600_000

    @property
    def end(self) -> int:
        return self.first + len(self.times_ms)

    def append(self, count: int, time_ms: int = 1000) -> None:
        self.times_ms += [time_ms] * count

    def expire_below(self, offset: int) -> None:
        self.times_ms = self.times_ms[offset - self.first :]
        self.first = offset

    def lose_from(self, offset: int) -> None:
        self.times_ms = self.times_ms[: offset - self.first]


class FakeBroker(BrokerServicer):
    """Answers QueueStatus, SearchOffset and Read. `stop` and `start` may be repeated."""

    def __init__(self, name: str = "broker-a", cluster: str = "rockoon") -> None:
        self.name = name
        self.cluster = cluster
        self.queues: dict[tuple[str, int], FakeQueue] = {}
        self.now_ms = 10_000
        self.status_calls = 0
        # Calls that ask for more than the ends of the queues.
        self.full_status_calls = 0
        self.listen = "127.0.0.1:0"
        self._server: GrpcServer | None = None
        # While it is cleared, calls get no reply.
        self.answering = asyncio.Event()
        self.answering.set()
        self._hold: asyncio.Event | None = None
        self.held = False

    def hold_next_status(self) -> asyncio.Event:
        """Hold the next QueueStatus reply, with its content of that time, until the event is
        set."""
        self._hold = asyncio.Event()
        return self._hold

    @property
    def address(self) -> str:
        assert self._server is not None
        return self._server.address

    def queue(self, topic: str, queue_id: int = 0) -> FakeQueue:
        return self.queues.setdefault((topic, queue_id), FakeQueue())

    async def start(self) -> None:
        def register(server: aio.Server) -> None:
            add_BrokerServicer_to_server(self, server)

        self._server = GrpcServer("broker", self.cluster, self.listen, register, (), drain=AT_ONCE)
        await self._server.__aenter__()
        self.listen = self._server.address

    async def stop(self) -> None:
        assert self._server is not None
        await self._server.__aexit__(None, None, None)

    async def __aenter__(self) -> "FakeBroker":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def QueueStatus(
        self, request: pb.QueueStatusRequest, context: Any
    ) -> pb.QueueStatusReply:
        check_bulk(request.queues)
        self.status_calls += 1
        self.full_status_calls += not request.offsets_only
        await self.answering.wait()
        states = list(map(self._state, request.queues))
        for state in states if request.offsets_only else ():
            state.ClearField("first_in_memory_by_distance")
        for state, offset in zip(states, request.offsets, strict=False):
            self._tell_fate(state, offset)
        reply = pb.QueueStatusReply(queues=states, as_of_ms=self.now_ms)
        hold, self._hold = self._hold, None
        if hold is not None:
            self.held = True
            await hold.wait()
        return reply

    async def SearchOffset(
        self, request: pb.SearchOffsetRequest, context: Any
    ) -> pb.SearchOffsetReply:
        check_bulk(request.queues)
        await self.answering.wait()
        reply = pb.SearchOffsetReply()
        for ref in request.queues:
            queue = self.queue(ref.topic, ref.queue_id)
            at = bisect.bisect_left(queue.times_ms, request.timestamp_ms)
            reply.offsets.add(queue=ref, offset=queue.first + at)
        return reply

    async def Read(self, request: pb.ReadRequest, context: Any) -> pb.ReadReply:
        await self.answering.wait()
        wanted = request.range
        queue = self.queue(wanted.topic, wanted.queue_id)
        if not queue.first <= wanted.offset < queue.end:
            raise MessageNotFound(position=wanted.offset)
        record = encode_record(
            Record(
                topic=wanted.topic.encode(),
                body=b"x",
                queue_id=wanted.queue_id,
                queue_offset=wanted.offset,
                store_timestamp_ms=queue.times_ms[wanted.offset - queue.first],
            )
        )
        lengths = len(record).to_bytes(4, "little")
        return pb.ReadReply(frames=bytes(record), record_lengths=lengths)

    def _tell_fate(self, state: pb.QueueState, offset: int) -> None:
        queue = self.queues.get((state.queue.topic, state.queue.queue_id))
        if queue is not None and offset < queue.end and queue.times_ms:
            at = max(offset, queue.first) - queue.first
            state.asked_store_timestamp_ms = queue.times_ms[at]
            state.asked_loss_at_ms = self.now_ms + queue.loss_in_ms
            state.asked_loss_cause = pb.LOSS_EXPIRED_AT_HOUR

    def _state(self, ref: pb.BrokerQueue) -> pb.QueueState:
        queue = self.queues.get((ref.topic, ref.queue_id))
        if queue is None:
            missing = QueueNotFound(topic=ref.topic, queue=ref.queue_id, broker=self.name)
            return pb.QueueState(queue=ref, error=missing.to_wire())
        state = pb.QueueState(queue=ref, min_offset=queue.first, max_offset=queue.end)
        if queue.times_ms:
            state.first_store_timestamp_ms = queue.times_ms[0]
            state.last_store_timestamp_ms = queue.times_ms[-1]
        if queue.first == 0 and queue.times_ms:
            state.first_in_memory_by_distance = queue.in_memory
            state.first_pages_resident = queue.in_memory
        return state
