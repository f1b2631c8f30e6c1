"""Leader's end of the streams: sends the log to each follower as soon as it is written.

Invariants:
- Bytes to send are read from the log, and at most UNACKNOWLEDGED_BYTES_MAX of a follower are
  unacknowledged: a slow follower uses no memory. Followers at the same position share one read.
- Chunks of a session are contiguous, from the Welcome's position on.
- A follower receives a message every HEARTBEAT_SECONDS. Rounds are sent without delay, and bytes
  too if none are unacknowledged. Other bytes are collected for PACE_SECONDS, because the follower's
  running sync does not include them anyway. A committed end is sent with the next bytes, or after
  COMMIT_SECONDS: no client of a follower waits for it.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, NamedTuple

from rockoon_core.clock import wait_at_most
from rockoon_core.errors import InvalidArgument, NotLeader, RockoonError
from rockoon_proto.v1 import replica_pb2 as pb
from rockoon_replica.events import AckArrived, Event, HelloArrived, SessionClosed
from rockoon_replica.log import ReplicatedLog
from rockoon_replica.messages import RecordChunk, Welcome
from rockoon_replica.standing import FollowerProgress
from rockoon_replica.wire import ack_from_wire, chunk_to_wire, hello_from_wire, welcome_to_wire

CHUNK_BYTES_MAX = 1 << 20
UNACKNOWLEDGED_BYTES_MAX = 8 << 20
SHARED_BYTES_MAX = 4 << 20
HEARTBEAT_SECONDS = 0.1
PACE_SECONDS = 0.001
COMMIT_SECONDS = 0.01
# Bytes that are sent without collecting more.
PACED_BYTES_MAX = 256 << 10


class RecordBytes(NamedTuple):
    """Bytes of whole records of a log, with their position and checksum."""

    offset: int
    data: bytes
    crc: int


class SharedReads:
    """Cache of the newest records that were read from the log, at most `SHARED_BYTES_MAX`.

    Followers at the same position share it. `crc32` is like `zlib.crc32`.
    """

    def __init__(self, log: ReplicatedLog, crc32: Callable[[bytes], int]) -> None:
        self._log = log
        self._crc32 = crc32
        # By offset, in the order of their reads.
        self._kept: dict[int, RecordBytes] = {}
        self._bytes = 0

    async def records(self, offset: int, *, refresh: bool = False) -> RecordBytes:
        """Return the records that begin at an offset; without data at the end of the log.

        Args:
            offset: position of the first record.
            refresh: read the log, even if the records are kept.

        Raises:
            ValueError: no record begins there, or it was deleted.
        """
        kept = self._kept.get(offset)
        if kept is not None and not refresh:
            return kept
        data = await self._log.fetch(offset, CHUNK_BYTES_MAX)
        records = RecordBytes(offset, data, self._crc32(data))
        if (kept := self._kept.pop(offset, None)) is not None:
            self._bytes -= len(kept.data)
        # Only the newest records are kept: no other follower needs the reads of a lagging one.
        if data and offset + len(data) == self._log.end:
            self._kept[offset] = records
            self._bytes += len(data)
            while self._bytes > SHARED_BYTES_MAX and len(self._kept) > 1:
                self._bytes -= len(self._kept.pop(next(iter(self._kept))).data)
        return records


class FollowerSession:
    """State of one follower's stream."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.welcome: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()
        self.changed = asyncio.Event()
        self.refusal: RockoonError | None = None
        self.sent_end = 0
        self.durable_end = 0
        self.has_sent_records = False
        # True while it collects bytes: a write need not wake this session.
        self.is_holding = False
        # Last sent committed end and round.
        self.last_sent = (-1, -1)

    def end(self, refusal: RockoonError) -> None:
        """End the follower's stream with an error."""
        self.refusal = self.refusal or refusal
        if not self.welcome.done():
            self.welcome.set_exception(self.refusal)
            # Mark the exception as retrieved, in case no task waits for the future.
            self.welcome.exception()
        self.changed.set()


class Leading:
    """Sends the log to all followers of one replica, and passes their acknowledgements to the
    member.

    Args:
        post: passes an event to the member; its future completes when it was handled.
        numbers: session numbers, shared with the sessions to a leader.
        crc32: like `zlib.crc32`.
        doubt: called with a range of the log that cannot be read.
    """

    def __init__(
        self,
        log_name: str,
        replica_id: str,
        log: ReplicatedLog,
        post: Callable[[Event], "asyncio.Future[None]"],
        numbers: "itertools.count[int]",
        crc32: Callable[[bytes], int],
        doubt: Callable[[int, int], object],
    ) -> None:
        self._log_name = log_name
        self._replica_id = replica_id
        self._log = log
        self._post = post
        self._numbers = numbers
        self._reads = SharedReads(log, crc32)
        self._doubt = doubt
        self._sessions: dict[int, FollowerSession] = {}
        # By replica id; including disconnected followers.
        self.progress: dict[str, FollowerProgress] = {}
        self._round = 0
        self._refusal: RockoonError | None = None

    def not_leader(self) -> NotLeader:
        """Return the error for callers that need the leader."""
        return NotLeader(replica=self._replica_id, log=self._log_name)

    # Called for the member's actions.

    def say_welcome(self, number: int, welcome: Welcome) -> None:
        session = self._sessions.get(number)
        if session is not None and not session.welcome.done():
            session.welcome.set_result(welcome)

    def end_session(self, number: int, refusal: RockoonError) -> None:
        if (session := self._sessions.get(number)) is not None:
            session.end(refusal)

    def send_round(self, number: int) -> None:
        self._round = max(self._round, number)
        for session in self._sessions.values():
            session.changed.set()

    def wake(self) -> None:
        """Wake the streams of all followers: the log or its committed end has grown."""
        for session in self._sessions.values():
            if not session.is_holding:
                session.changed.set()

    def end_all(self) -> None:
        """End all streams and refuse new ones: this replica no longer leads, or is closed."""
        self._refusal = self.not_leader()
        for session in self._sessions.values():
            session.end(self._refusal)

    # The stream.

    async def replicate(
        self,
        hello: pb.FollowerHello,
        requests: AsyncIterator[Any],
        spawn: Callable[[Coroutine[Any, Any, None], str], "asyncio.Task[None]"],
    ) -> AsyncIterator[pb.LeaderSays]:
        """Serve the stream of one follower.

        Args:
            hello: its first message.
            requests: the messages after it.
            spawn: starts a named task that ends with this replica.

        Raises:
            NotLeader: this replica does not lead, or no longer.
            InvalidArgument: the follower is not one of this log, or sends an invalid message.
        """
        if self._refusal is not None:
            raise self._refusal
        arrived = hello_from_wire(hello)
        session = FollowerSession(next(self._numbers))
        self._sessions[session.number] = session
        try:
            self._post(HelloArrived(session.number, arrived))
            welcome = await session.welcome
            yield welcome_to_wire(welcome)
            if welcome.truncate_to is None:
                return
            now = asyncio.get_running_loop().time()
            progress = self.progress.setdefault(arrived.replica, FollowerProgress(now))
            session.sent_end = session.durable_end = welcome.truncate_to
            progress.opened(session.number, session.durable_end)
            reading = self._read(session, progress, requests)
            reader = spawn(reading, f"acknowledgements of {arrived.replica}")
            try:
                async for message in self._chunks(session, welcome.epoch):
                    yield message
            finally:
                reader.cancel()
                progress.closed(session.number)
        finally:
            del self._sessions[session.number]
            self._post(SessionClosed(session.number))

    async def _chunks(self, session: FollowerSession, epoch: int) -> AsyncIterator[pb.LeaderSays]:
        now = asyncio.get_running_loop().time
        sent_at = 0.0
        while session.refusal is None:
            session.changed.clear()
            state = (self._log.committed_end, self._round)
            pause = self._pause(session, state)
            if (seconds := sent_at + pause - now()) > 0:
                # Not while only a committed end waits: new bytes must be sent without delay.
                session.is_holding = pause == PACE_SECONDS
                await wait_at_most(seconds, session.changed.wait())
                session.is_holding = False
                continue
            records = RecordBytes(session.sent_end, b"", 0)
            if self._room(session) > 0:
                records = await self._next_records(session)
                if session.refusal is not None:
                    break
            sent_at = now()
            session.sent_end += len(records.data)
            session.last_sent = state
            chunk = RecordChunk(
                epoch=epoch,
                leader=self._replica_id,
                offset=records.offset,
                data=records.data,
                committed_end=state[0],
                min_offset=self._log.min_offset,
                round=state[1],
                generation=self._log.generation.identity,
            )
            yield chunk_to_wire(chunk, records.crc)
        raise session.refusal

    def _room(self, session: FollowerSession) -> int:
        """Number of bytes that may be sent to a follower now."""
        unacknowledged = session.sent_end - session.durable_end
        return min(self._log.end - session.sent_end, UNACKNOWLEDGED_BYTES_MAX - unacknowledged)

    def _pause(self, session: FollowerSession, state: tuple[int, int]) -> float:
        """Minimum pause in seconds between the last chunk sent to a follower and the next one."""
        room = self._room(session)
        if state[1] != session.last_sent[1] or room >= PACED_BYTES_MAX:
            return 0.0
        if room > 0 and session.sent_end == session.durable_end:
            return 0.0
        if room > 0:
            return PACE_SECONDS
        return COMMIT_SECONDS if state != session.last_sent else HEARTBEAT_SECONDS

    async def _next_records(self, session: FollowerSession) -> RecordBytes:
        try:
            # A follower reconnects after it refused bytes; the log may have been repaired since.
            records = await self._reads.records(
                session.sent_end, refresh=not session.has_sent_records
            )
        except ValueError as failure:
            if session.refusal is not None:
                raise session.refusal from failure
            # The record was deleted, which the next Welcome shows, or it is damaged.
            self._doubt(session.sent_end, session.sent_end + 1)
            raise InvalidArgument(
                reason=f"the log has no record at {session.sent_end} any more: {failure}"
            ) from failure
        session.has_sent_records = True
        return records

    async def _read(
        self, session: FollowerSession, progress: FollowerProgress, requests: AsyncIterator[Any]
    ) -> None:
        """Read the follower's acknowledgements; the root of a task."""
        now = asyncio.get_running_loop().time
        try:
            async for message in requests:
                if message.WhichOneof("what") != "ack":
                    raise InvalidArgument(reason="a follower sends Hello once, then acknowledges")
                ack = ack_from_wire(message.ack)
                await self._post(AckArrived(session.number, ack, session.sent_end))
                # The member refuses acknowledgements of bytes that were not sent.
                if session.durable_end < ack.durable_end <= session.sent_end:
                    session.durable_end = ack.durable_end
                    session.changed.set()
                progress.acknowledged(session.durable_end, self._log.end, now())
        except RockoonError as refusal:
            session.end(refusal)
        except Exception:  # noqa: BLE001 - gRPC's, of an ended connection
            session.end(self.not_leader())
