"""A broker in this process, on a free port, and its calls."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from rockoon_broker.clock import Clock
from rockoon_broker.server import serve
from rockoon_broker.settings import BrokerSettings
from rockoon_core.disk import Disk
from rockoon_core.errors import BrokerUnavailable, NotReady
from rockoon_core.failed_call import from_rpc_error
from rockoon_format.batch import decode_columns, encode_batch
from rockoon_format.record import encode_host
from rockoon_proto.v1 import broker_pb2 as pb
from rockoon_proto.v1.broker_pb2_grpc import BrokerStub
from rockoon_runtime.process import Stop
from support.eventually import answered
from support.waiting import DEADLINE_SECONDS

BORN_HOST = encode_host("127.0.0.1", 54321)
NOW_MS = 1_700_000_000_000

SMALL: dict[str, Any] = {
    "name": "broker-a",
    "listen": "127.0.0.1:0",
    "commit_log_file_bytes": 4 << 20,
    "consume_queue_file_entries": 1000,
    "index_slots": 1000,
    "index_units": 4000,
    "drain_seconds_max": 5.0,
    # The disk of a test machine may be nearly full.
    "disk_full_percent": 100,
    "disk_forced_percent": 100,
}


def settings_of(root: Path, nameservers: Sequence[str], **changes: Any) -> BrokerSettings:
    values = {**SMALL, "store_path": root, "nameservers": tuple(nameservers), **changes}
    return BrokerSettings(**values)


class RunningBroker:
    """Calls of a broker; errors are raised as the classes of the error table.

    Attributes:
        address: "host:port".
        stop: `stop.request(...)` stops the broker; `stop.fatal` is the reason if it stopped by
            itself.
    """

    def __init__(self, address: str, channel: aio.Channel, stop: Stop) -> None:
        self.address = address
        self.channel = channel
        self.stub: Any = BrokerStub(channel)
        self.stop = stop

    async def call(self, method: str, request: Any, seconds: float = DEADLINE_SECONDS) -> Any:
        """Make a unary call; an error of the table is raised as its class."""
        try:
            return await getattr(self.stub, method)(request, timeout=seconds)
        except grpc.RpcError as failure:
            raise from_rpc_error(failure, BrokerUnavailable, broker=self.address) from failure

    async def append(self, topic: str, queue_id: int = 0, *bodies: bytes, **more: Any) -> Any:
        reply = await self.call("Append", batch(topic, queue_id, *bodies, **more))
        return reply.appended

    async def pull(self, topic: str, queue_id: int = 0, offset: int = 0, **more: Any) -> Any:
        return await self.call(
            "Pull", pb.PullRequest(topic=topic, queue_id=queue_id, offset=offset, **more)
        )

    async def describe(self) -> Any:
        return await self.call("DescribeBroker", pb.DescribeBrokerRequest())

    async def query(self, topic: str, key: str, **more: Any) -> Any:
        """Query messages by key; repeat the query while the index has not reached the log's end."""

        async def ask() -> Any:
            request = pb.QueryMessagesRequest(topic=topic, key=key, **more)
            return await self.call("QueryMessages", request)

        return await answered(ask, lambda reply: "retry" not in reply.not_searched_because)

    async def until(self, condition: Callable[[Any], bool]) -> Any:
        """Repeat DescribeBroker until a condition is true; return the description.

        The broker may register again while this call waits, if its lease has expired.
        """

        async def look() -> Any:
            try:
                return await self.describe()
            except NotReady:
                return None

        return await answered(look, lambda seen: seen is not None and condition(seen))

    async def bodies(self, topic: str, queue_id: int = 0, offset: int = 0) -> list[bytes]:
        """Return all bodies of a queue from an offset on."""
        found: list[bytes] = []
        while True:
            reply = await self.pull(topic, queue_id, offset)
            if reply.status != pb.FOUND:
                return found
            found += bodies_of(reply)
            offset = reply.next_offset


@asynccontextmanager
async def running_broker(
    root: Path,
    nameservers: Sequence[str],
    *,
    disk: Disk | None = None,
    clock: Clock | None = None,
    quiet_seconds: float = 0.0,
    **changes: Any,
) -> AsyncIterator[RunningBroker]:
    """Run a broker until the block ends; an exception of `serve` is raised here.

    With `quiet_seconds` = 0 the broker stops at once and does not announce its end first.
    """
    stop = Stop()
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def life() -> None:
        try:
            await serve(
                settings_of(root, nameservers, **changes),
                stop,
                disk=disk,
                clock=clock,
                announce=lambda _service, _name, where: address.set_result(where),
                first_routes_seconds_max=20.0,
                quiet_seconds=quiet_seconds,
            )
        finally:
            if not address.done():
                address.set_exception(stop.fatal or RuntimeError("it did not serve"))
                # Retrieved here too: if `serve` raises, no task awaits it.
                address.exception()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(life(), name="broker")
        where = await address
        async with aio.insecure_channel(where, options=CHANNEL_OPTIONS) as channel:
            try:
                yield RunningBroker(where, channel, stop)
            finally:
                stop.request("the test is over")


CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.use_local_subchannel_pool", 1),
)


def batch(
    topic: str,
    queue_id: int = 0,
    *bodies: bytes,
    tags: str | Sequence[str] = "TagA",
    keys: str | Sequence[str] = "",
    request_id: int = 0,
    route_revision: int = 0,
) -> pb.AppendRequest:
    """Return a request with one record for each body."""
    columns = [
        [f"{name}\x01{value}\x02".encode() if value else b"" for value in each]
        for name, each in (
            ("TAGS", [tags] * len(bodies) if isinstance(tags, str) else tags),
            ("KEYS", [keys] * len(bodies) if isinstance(keys, str) else keys),
        )
    ]
    frames, lengths = encode_batch(
        topic.encode(),
        queue_id,
        list(bodies),
        [tag + key for tag, key in zip(*columns, strict=True)],
        NOW_MS,
        BORN_HOST,
    )
    return pb.AppendRequest(
        topic=topic,
        queue_id=queue_id,
        frames=frames,
        record_lengths=lengths.astype("<u4").tobytes(),
        request_id=request_id,
        route_revision=route_revision,
    )


def bodies_of(reply: Any) -> list[bytes]:
    """Return the bodies of a PullReply or ReadReply."""
    lengths = [
        int.from_bytes(reply.record_lengths[at : at + 4], "little")
        for at in range(0, len(reply.record_lengths), 4)
    ]
    return list(decode_columns(reply.frames, lengths).bodies) if lengths else []
