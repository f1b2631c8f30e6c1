"""Follower's end of the stream: connects to the leader, forwards its messages to the member,
acknowledges.

Invariants:
- One connection at a time, to the leader named last. Messages of an earlier one are dropped.
- The next chunk is read when the member has handled the one before: no chunks are buffered here.
- A leader counts as silent if several checks in a row have seen no message from it. While the
  process is suspended, or handles a chunk, no check runs. Messages that arrived in that time are
  read before the next check.
"""

import asyncio
import itertools
import logging
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import grpc

from rockoon_core.channels import Channels
from rockoon_core.clock import Backoff
from rockoon_core.errors import BrokerUnavailable, NotLeader
from rockoon_core.failed_call import from_rpc_error
from rockoon_core.protocol import CLUSTER_METADATA_KEY
from rockoon_proto.v1.replica_pb2_grpc import ReplicationStub
from rockoon_replica.events import (
    ChunkArrived,
    Event,
    LeaderHeard,
    LeaderLost,
    SessionClosed,
    SessionOpened,
    WelcomeArrived,
)
from rockoon_replica.messages import Ack, Hello
from rockoon_replica.wire import ack_to_wire, chunk_from_wire, hello_to_wire, welcome_from_wire

if TYPE_CHECKING:
    from rockoon_proto.v1 import replica_pb2 as pb
    from rockoon_proto.v1.replica_pb2_grpc import ReplicationAsyncStub

log = logging.getLogger(__name__)

CHECK_SECONDS = 0.1
RECONNECT_SECONDS_MAX = 1.0
PROBE_SECONDS_MAX = 1.0
# A newly elected leader may not know yet that it leads. After up to this many refusals in a row,
# the follower reconnects after a short pause. After more (the log may be frozen), it reconnects
# once a second.
QUICK_REFUSALS_MAX = 20
# Pause after a failed write, before the records are requested again.
PAUSE_SECONDS = 1.0


class ChecksumMismatch(Exception):
    """The checksum of a message from the leader is wrong."""


class LeaderSession:
    """State of one connection to a leader."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.changed = asyncio.Event()
        # To be sent.
        self.hello: Hello | None = None
        self.ack: Ack | None = None


class Following:
    """Keeps the follower's connection to the leader of a log.

    Args:
        cluster: name of the cluster, sent with each call: a node of another cluster refuses it.
        address_of: address of a replica, "host:port"; None while it is unknown.
        post: passes an event to the member; its future completes when it was handled.
        numbers: session numbers, shared with the sessions of followers.
        patience: seconds of silence after which the leader counts as lost; called at each check.
        crc32: like `zlib.crc32`.
    """

    def __init__(
        self,
        log_name: str,
        cluster: str,
        channels: Channels,
        address_of: Callable[[str], str | None],
        post: Callable[[Event], "asyncio.Future[None]"],
        numbers: "itertools.count[int]",
        patience: Callable[[], float],
        crc32: Callable[[bytes], int] = zlib.crc32,
    ) -> None:
        self._log_name = log_name
        self._metadata = ((CLUSTER_METADATA_KEY, cluster),)
        self._channels = channels
        self._address_of = address_of
        self._post = post
        self._numbers = numbers
        self._patience = patience
        self._crc32 = crc32
        # Leader and epoch.
        self._target: tuple[str, int] | None = None
        self._changed = asyncio.Event()
        self._session: LeaderSession | None = None
        # Checks in a row without a message.
        self._silent_checks = 0
        # Refusals of the leader since its last message.
        self._refusals = 0
        self._is_busy = False
        self._is_lost = False
        self._is_paused = False

    # Called for the member's actions.

    def connect(self, leader: str, epoch: int) -> None:
        if self._target != (leader, epoch):
            self._set_target((leader, epoch))

    def disconnect(self) -> None:
        if self._target is not None:
            self._set_target(None)

    def _set_target(self, target: tuple[str, int] | None) -> None:
        self._target = target
        self._silent_checks = self._refusals = 0
        self._is_lost = False
        self._end_session()

    def pause(self) -> None:
        """Close the connection, and reconnect after a pause: chunks cannot be written now."""
        self._is_paused = True
        self._end_session()

    def _end_session(self) -> None:
        self._session = None
        self._changed.set()

    def say_hello(self, number: int, hello: Hello) -> None:
        if self._session is not None and self._session.number == number:
            self._session.hello = hello
            self._session.changed.set()

    def acknowledge(self, number: int, ack: Ack) -> None:
        if self._session is not None and self._session.number == number:
            self._session.ack = ack
            self._session.changed.set()

    # The connection.

    async def run(self) -> None:
        """Keep the connection to the leader open until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_silence(), name="silence of the leader")
            while True:
                self._changed.clear()
                if self._target is None:
                    await self._changed.wait()
                    continue
                leader, _ = self._target
                connection = tasks.create_task(
                    self._keep_connected(leader, tasks), name=f"leader {leader}"
                )
                await self._changed.wait()
                connection.cancel()
                await asyncio.wait({connection})

    async def _keep_connected(self, leader: str, tasks: asyncio.TaskGroup) -> None:
        if self._is_paused:
            self._is_paused = False
            self._is_busy = True
            await asyncio.sleep(PAUSE_SECONDS)
            self._is_busy = False
        backoff = Backoff(CHECK_SECONDS / 2, RECONNECT_SECONDS_MAX)
        while True:
            address = self._address_of(leader)
            if address is not None:
                try:
                    await self._run_session(address, tasks, backoff)
                except grpc.RpcError as failure:
                    reason = from_rpc_error(failure, BrokerUnavailable, broker=address)
                    log.info("log %s, leader %s: %s", self._log_name, leader, reason)
                    if isinstance(reason, NotLeader):
                        self._refusals += 1
                        if self._refusals <= QUICK_REFUSALS_MAX:
                            backoff.reset()
                    elif isinstance(reason, BrokerUnavailable) and await refuses_connections(
                        address
                    ):
                        self._leader_lost()
                except ChecksumMismatch as reason:
                    log.warning("log %s, leader %s: %s", self._log_name, leader, reason)
            await asyncio.sleep(backoff.next_seconds())

    async def _run_session(self, address: str, tasks: asyncio.TaskGroup, backoff: Backoff) -> None:
        """Run one connection to the leader from start to end.

        Raises:
            grpc.RpcError: it ended, or could not be opened.
            ChecksumMismatch: a message's checksum is wrong.
        """
        stub: ReplicationAsyncStub = ReplicationStub(self._channels.get(address))
        call: Any = stub.Replicate(metadata=self._metadata)
        session = LeaderSession(next(self._numbers))
        writer: asyncio.Task[None] | None = None
        try:
            await call.wait_for_connection()
            self._session = session
            self._post(SessionOpened(session.number))
            writer = tasks.create_task(self._write(call, session), name="acknowledging")
            async for message in call:
                self._leader_heard()
                self._is_busy = True
                await self._post(event_of(session.number, message, self._crc32))
                self._is_busy = False
                backoff.reset()
        finally:
            self._is_busy = False
            call.cancel()
            if writer is not None:
                writer.cancel()
                self._post(SessionClosed(session.number))
            if self._session is session:
                self._session = None

    async def _write(self, call: Any, session: LeaderSession) -> None:
        """Send Hello to the leader, then acknowledgements, of pending ones only the latest."""
        # Errors of an ended connection: the reading task reports the reason.
        with suppress(grpc.RpcError, asyncio.InvalidStateError):
            while True:
                await session.changed.wait()
                session.changed.clear()
                if session.hello is not None:
                    hello, session.hello = session.hello, None
                    await call.write(hello_to_wire(self._log_name, hello))
                if session.ack is not None:
                    ack, session.ack = session.ack, None
                    await call.write(ack_to_wire(ack))

    # Silence.

    async def _watch_silence(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            if self._target is None or self._is_busy:
                continue
            self._silent_checks += 1
            if self._silent_checks * CHECK_SECONDS >= self._patience():
                self._leader_lost()

    def _leader_lost(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._post(LeaderLost())

    def _leader_heard(self) -> None:
        self._silent_checks = self._refusals = 0
        if self._is_lost:
            self._is_lost = False
            self._post(LeaderHeard())


def event_of(
    session: int, message: "pb.LeaderSays", crc32: Callable[[bytes], int] = zlib.crc32
) -> Event:
    """Convert a leader's message to an event. Raises ChecksumMismatch."""
    if message.WhichOneof("what") == "welcome":
        return WelcomeArrived(session, welcome_from_wire(message.welcome))
    chunk = chunk_from_wire(message.chunk)
    if crc32(chunk.data) != message.chunk.crc:
        raise ChecksumMismatch(
            f"the {len(chunk.data)} bytes for offset {chunk.offset} do not have the checksum that "
            "they were sent with"
        )
    return ChunkArrived(session, chunk)


async def refuses_connections(address: str) -> bool:
    """True if a host refuses connections: the leader's process has ended, and its host is up."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(PROBE_SECONDS_MAX):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        return False
    writer.close()
    return False
