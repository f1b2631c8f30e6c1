"""A broker that appends to memory only, and fails when a test requests it.

It checks every batch as the real broker does, and numbers messages by queue. The test chooses the
fault of each request: refuse the batch, store it and lose the reply, or never reply.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any, Self

import numpy as np
from grpc import aio

from rockoon_core.errors import RockoonError
from rockoon_format.batch import Columns, check_batch, decode_columns, patch_batch
from rockoon_format.record import encode_host
from rockoon_proto.v1 import broker_pb2 as pb
from rockoon_proto.v1.broker_pb2_grpc import BrokerServicer, add_BrokerServicer_to_server
from rockoon_runtime.wire import GrpcServer
from support.drains import AT_ONCE
from support.scripted_nameserver import ScriptedNameserver
from support.waiting import DEADLINE_SECONDS

STORE_HOST = encode_host("127.0.0.1", 10911)
STORE_TIME_MS = 1_700_000_000_000


class Fault(Enum):
    """Faults of a batch."""

    BREAK = "the stream breaks before it is stored"
    BREAK_AFTER = "it is stored, the stream breaks before the answer"
    SILENCE = "it is neither stored nor answered"


Plan = Callable[[pb.AppendRequest], "Fault | RockoonError | None"]


@dataclass(frozen=True)
class Stored:
    """A batch in a queue."""

    first_offset: int
    columns: Columns


class FakeAppendBroker(BrokerServicer):
    """An async context manager; `stop` and `start` end and restart the service.

    Attributes:
        plan: called with each request; returns its fault.
        gate: replies wait while it is cleared.
        queues: stored batches, by topic and queue id.
        batches_max: maximum of batches in a message; 0: as a broker that knows only one per
            message.
        messages: number of messages in which these batches arrived.
        requests: number of batches that arrived; `streams`: number of their streams.
        clusters: cluster that each stream names; route_revisions: route revision of each batch.
        in_flight_seen: the largest number of batches without a reply at one time.
    """

    def __init__(self, name: str, nameserver: ScriptedNameserver) -> None:
        self.name = name
        self.plan: Plan = lambda _: None
        self.gate = asyncio.Event()
        self.gate.set()
        self.queues: dict[tuple[str, int], list[Stored]] = {}
        self.batches_max = 0
        self.messages = 0
        self.requests = 0
        self.streams = 0
        self.clusters: list[str] = []
        self.route_revisions: list[int] = []
        self.in_flight_seen = 0
        self._nameserver = nameserver
        self._server: GrpcServer | None = None
        self._address = "127.0.0.1:0"
        self._physical = 0
        self._arrived = asyncio.Event()

    # Calls of a test.

    async def start(self, *, elsewhere: bool = False, host: str = "", name: str = "") -> None:
        """Begin to serve; with `elsewhere` at another port, with `host` at another address.

        If `name` is set, the route uses this name, also if the address changes.
        """
        if elsewhere:
            self._address = "127.0.0.1:0"
        if host:
            self._address = f"{host}:{self._address.rpartition(':')[2]}"

        def register(server: aio.Server) -> None:
            add_BrokerServicer_to_server(self, server)

        self._server = GrpcServer("broker", "rockoon", self._address, register, [], drain=AT_ONCE)
        await self._server.__aenter__()
        self._address = self._server.address
        self._nameserver.put_node(self.name, name or self._address)

    @property
    def port(self) -> int:
        return int(self._address.rpartition(":")[2])

    async def stop(self, *, unregister: bool = False) -> None:
        if unregister:
            self._nameserver.remove_node(self.name)
        if self._server is not None:
            server, self._server = self._server, None
            await server.__aexit__(None, None, None)

    def bodies(self, topic: str, queue_id: int) -> list[bytes]:
        """Return all bodies of a queue, in order."""
        stored = self.queues.get((topic, queue_id), [])
        return [body for batch in stored for body in batch.columns.bodies]

    def batches(self, topic: str) -> Iterator[Stored]:
        for (name, _), stored in sorted(self.queues.items()):
            if name == topic:
                yield from stored

    def all_bodies(self, topic: str) -> list[bytes]:
        return [body for batch in self.batches(topic) for body in batch.columns.bodies]

    async def wait_requests(self, count: int) -> None:
        """Wait until this number of batches has arrived."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while self.requests < count:
                await self._arrived.wait()

    # Calls of the producer.

    async def AppendStream(self, requests: Any, context: Any) -> AsyncIterator[pb.AppendReply]:
        self.streams += 1
        self.clusters += [
            value for key, value in context.invocation_metadata() if key == "rockoon-cluster"
        ]
        received: asyncio.Queue[pb.AppendRequest] = asyncio.Queue()

        async def receive() -> None:
            async for request in requests:
                self.messages += 1
                self.requests += 1 + len(request.more)
                assert len(request.more) < max(self.batches_max, 1)
                self.route_revisions.append(request.route_revision)
                received.put_nowait(request)
                self.in_flight_seen = max(self.in_flight_seen, received.qsize())
                self._arrived.set()
                self._arrived = asyncio.Event()

        async with asyncio.TaskGroup() as tasks:
            receiving = tasks.create_task(receive())
            ending = tasks.create_task(receiving_done(receiving, received))
            while (request := await received.get()).request_id:
                await self.gate.wait()
                batches = (request, *request.more)
                faults = [self.plan(batch) for batch in batches]
                fault = next((each for each in faults if isinstance(each, Fault)), None)
                if fault is Fault.BREAK:
                    receiving.cancel()
                    ending.cancel()
                    break
                if fault is Fault.SILENCE:
                    continue
                reply, *more = map(self._reply, batches, faults)
                reply.more.extend(more)
                reply.batches_max = self.batches_max
                if fault is Fault.BREAK_AFTER:
                    receiving.cancel()
                    ending.cancel()
                    break
                yield reply

    def _reply(
        self, request: pb.AppendRequest, error: "Fault | RockoonError | None"
    ) -> pb.AppendReply:
        if isinstance(error, RockoonError):
            return pb.AppendReply(request_id=request.request_id, error=error.to_wire())
        return pb.AppendReply(request_id=request.request_id, appended=self._store(request))

    def _store(self, request: pb.AppendRequest) -> pb.Appended:
        layout = check_batch(
            request.frames,
            np.frombuffer(request.record_lengths, "<u4"),
            topic=request.topic.encode(),
            queue_id=request.queue_id,
            body_bytes_max=4 << 20,
            record_bytes_max=5 << 20,
        )
        queue = self.queues.setdefault((request.topic, request.queue_id), [])
        first = queue[-1].first_offset + len(queue[-1].columns) if queue else 0
        buffer = np.frombuffer(bytearray(request.frames), np.uint8)
        patch_batch(
            buffer,
            layout,
            first_queue_offset=first,
            first_physical_offset=self._physical,
            store_timestamp_ms=STORE_TIME_MS,
            store_host=STORE_HOST,
        )
        queue.append(Stored(first, decode_columns(buffer.tobytes(), layout.lengths)))
        appended = pb.Appended(
            first_queue_offset=first,
            first_physical_offset=self._physical,
            messages=layout.count,
            store_timestamp_ms=STORE_TIME_MS,
            store_host=STORE_HOST,
        )
        self._physical += layout.total_bytes
        return appended

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()


async def receiving_done(
    receiving: asyncio.Task[None], received: asyncio.Queue[pb.AppendRequest]
) -> None:
    """Put an empty request after the last one of a stream that the producer has ended."""
    await asyncio.wait([receiving])
    received.put_nowait(pb.AppendRequest())
