"""Offset stores: a group's progress in a consumer's memory, and the storage behind it.

Invariants:
- The offset in memory only increases, unless `increase_only` is False. A removed queue has no
  offset in memory, so a late result of its former owner cannot be committed.
- Each updated offset is stored, waits to be stored, or is reported as lost.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rockoon.errors import CommitBehind, OffsetServiceUnavailable, RockoonError, from_wire
from rockoon.net.connection import CALL_SECONDS_MAX, Connection
from rockoon.offsets.start import ConsumeFrom, Start
from rockoon_core.message_queue import MessageQueue, in_calls, queue_to_wire
from rockoon_core.repeated_lines import limited
from rockoon_proto.v1 import offset_pb2 as offset_pb

log = limited(logging.getLogger(__name__))

# A member retries its commits itself, so a short timeout is better than a long wait. For readers
# without membership, a failed commit is raised to the caller.
MEMBER_COMMIT_SECONDS_MAX = 3.0


@dataclass(frozen=True, slots=True)
class Persisted:
    """Result of storing offsets."""

    stored: Mapping[MessageQueue, int] = field(default_factory=dict)
    kept: Mapping[MessageQueue, RockoonError] = field(default_factory=dict)
    """The error of each queue whose offset the store keeps after a retriable error: the next call
    stores it."""
    lost: Mapping[MessageQueue, RockoonError] = field(default_factory=dict)
    """This reader does not own the queue any more, or the offset is invalid: discard its messages
    and resolve it again."""


class OffsetStore(Protocol):
    """RocketMQ's OffsetStore: the progress of one group in one consumer.

    A consumer accepts any object with these methods (`offset_store=`). To store offsets elsewhere,
    a `rockoon.OffsetBackend` with few methods is enough; write a whole store only to decide start
    positions as well. One consumer calls it from one event loop: `load` first, `close` last,
    `update` of a queue only between its `resolve` and `remove`.
    """

    async def load(self) -> None:
        """Prepare the store; reads progress that is stored locally, if any."""

    async def resolve(
        self, queues: Sequence[MessageQueue], consume_from: ConsumeFrom, route_revision: int = 0
    ) -> Mapping[MessageQueue, Start | RockoonError]:
        """Decide where to start on each queue, and keep the offset in memory.

        Raises:
            RockoonError: no queue could be decided.
        """
        ...

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool = True) -> None:
        """Set the next offset to consume; ignored for a queue that was not resolved."""

    def read_memory(self, queue: MessageQueue) -> int | None:
        """Return the offset in memory."""
        ...

    async def read_store(self, queue: MessageQueue) -> int | None:
        """Return the stored offset."""
        ...

    async def read(self, queue: MessageQueue) -> int | None:
        """Return the offset in memory, or else the stored one."""
        ...

    async def persist(self, queues: Collection[MessageQueue]) -> Persisted:
        """Store the changed offsets of some queues.

        Raises:
            RockoonError: the group does not exist any more. Retriable errors are not raised: they
                are in `Persisted.kept`.
        """
        ...

    async def persist_all(self) -> Persisted:
        """Store all changed offsets, as `persist`."""
        ...

    async def release(self, queues: Collection[MessageQueue]) -> Persisted:
        """Store as `persist` and, in the same call, release the queues, so that another member can
        own them immediately. Queues in `retriable` are not released either.
        """
        ...

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Store an offset immediately.

        Raises:
            RockoonError: the offset was not stored.
        """

    def remove(self, queue: MessageQueue) -> None:
        """Remove a queue from memory; its stored offset remains."""

    def clone(self, topic: str) -> dict[MessageQueue, int]:
        """Return the offsets in memory of a topic's queues."""
        ...

    async def close(self) -> None:
        """Close what `load` opened, also after a failed `load`; stores nothing."""


@dataclass(slots=True)
class _QueuePosition:
    """Offset of a queue in memory, from Resolve until it is removed or resolved again. Each Resolve
    creates a new object: a late reply must not change the state of a later Resolve."""

    offset: int
    epoch: int
    stored: int


class RemoteOffsetStore:
    """Progress in the offset service, as RocketMQ's RemoteBrokerOffsetStore.

    Args:
        cluster: the connection to the offset service.
        member_id: id of the committing member; empty for a reader without membership.
        own: the progress is the member's own (group setting BROADCAST_SERVER), not the group's.
    """

    def __init__(
        self, cluster: Connection, group: str, member_id: str = "", *, own: bool = False
    ) -> None:
        self.is_paused = False
        """True if the group is paused, by the last reply to Commit; False after Resolve."""
        self._cluster = cluster
        self._group = group
        self._member_id = member_id
        self._own_member = member_id if own else ""
        self._mode = offset_pb.BROADCASTING if own else offset_pb.CLUSTERING
        self._positions: dict[MessageQueue, _QueuePosition] = {}
        # Parallel calls could store an older offset after a newer one.
        self._storing = asyncio.Lock()

    async def load(self) -> None:
        """Does nothing: the service is called when a queue is resolved."""

    async def resolve(
        self, queues: Sequence[MessageQueue], consume_from: ConsumeFrom, route_revision: int = 0
    ) -> dict[MessageQueue, Start | RockoonError]:
        """Decide where to start, as `OffsetStore.resolve`. It can be cancelled: a decision that the
        service has stored is the result of the next call."""
        found: dict[MessageQueue, Start | RockoonError] = {}
        for some in in_calls(queues):
            reply = await self._cluster.call(
                self._cluster.offset_service().Resolve,
                offset_pb.ResolveRequest(
                    group=self._group,
                    member_id=self._member_id,
                    queues=[queue_to_wire(queue) for queue in some],
                    policy=consume_from.to_wire(),
                    route_revision=route_revision,
                    mode=self._mode,
                ),
                unavailable=OffsetServiceUnavailable,
            )
            for queue, answer in zip(some, reply.starts, strict=True):
                if answer.HasField("error"):
                    found[queue] = from_wire(answer.error)
                    continue
                start = Start.from_wire(queue, answer)
                self.is_paused = False
                self._positions[queue] = _QueuePosition(start.offset, start.epoch, start.offset)
                found[queue] = start
        return found

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool = True) -> None:
        position = self._positions.get(queue)
        if position is not None and (offset > position.offset or not increase_only):
            position.offset = offset

    def read_memory(self, queue: MessageQueue) -> int | None:
        position = self._positions.get(queue)
        return position.offset if position else None

    async def read_store(self, queue: MessageQueue) -> int | None:
        """Return the group's stored offset.

        If none is stored, the offset service applies the group's new-queue rule: it returns the
        start of a queue that is new to the group, and None for any other queue. It stores nothing.
        """
        reply = await self._cluster.call(
            self._cluster.offset_service().Query,
            offset_pb.QueryRequest(
                group=self._group, queue=queue_to_wire(queue), member=self._own_member
            ),
            unavailable=OffsetServiceUnavailable,
        )
        return reply.offset if reply.found else None

    async def read(self, queue: MessageQueue) -> int | None:
        remembered = self.read_memory(queue)
        return await self.read_store(queue) if remembered is None else remembered

    async def persist(self, queues: Collection[MessageQueue]) -> Persisted:
        return await self._persist(queues, releases=False)

    async def release(self, queues: Collection[MessageQueue]) -> Persisted:
        return await self._persist(queues, releases=bool(self._member_id))

    async def _persist(self, queues: Collection[MessageQueue], *, releases: bool) -> Persisted:
        async with self._storing:
            waiting = {
                queue: position
                for queue in queues
                if (position := self._positions.get(queue)) and position.offset != position.stored
            }
            stored: dict[MessageQueue, int] = {}
            retriable: dict[MessageQueue, RockoonError] = {}
            lost: dict[MessageQueue, RockoonError] = {}
            # A release names all queues. If the progress of a queue is stored already, the queue
            # needs no commit, but the service must learn that this member no longer reads it.
            for some in in_calls(queues if releases else waiting):
                positions = {queue: waiting[queue] for queue in some if queue in waiting}
                try:
                    results = await self._commit(positions, release=some if releases else ())
                except RockoonError as error:
                    if not error.retriable:
                        raise
                    retriable.update(dict.fromkeys(some, error))
                    continue
                for (queue, position), (result, offset) in zip(
                    positions.items(), results, strict=True
                ):
                    self._record_result(queue, position, result, offset, stored, retriable, lost)
            return Persisted(stored, retriable, lost)

    async def persist_all(self) -> Persisted:
        return await self.persist(list(self._positions))

    async def commit(
        self, queue: MessageQueue, offset: int, *, metadata: str = "", force: bool = False
    ) -> None:
        """Store an offset immediately.

        Args:
            queue: a resolved queue.
            offset: next offset to consume.
            metadata: stored with the offset, at most 4096 bytes.
            force: store it also if it is lower than the stored one.

        Raises:
            Fenced: another member owns the queue, or a reset has moved it.
            CommitBehind: a higher offset is stored already, and `force` is False.
            OffsetBeyondEnd: the offset is past the end of the queue.
            OffsetServiceUnavailable: the service does not answer; it may have stored the offset.
            KeyError: the queue was not resolved.
        """
        async with self._storing:
            position = self._positions[queue]
            chosen = _QueuePosition(offset, position.epoch, position.stored)
            ((result, _),) = await self._commit({queue: chosen}, metadata=metadata, force=force)
            if result.HasField("error"):
                raise from_wire(result.error)
            position.stored = offset
            position.offset = offset if force else max(position.offset, offset)

    def remove(self, queue: MessageQueue) -> None:
        self._positions.pop(queue, None)

    def clone(self, topic: str) -> dict[MessageQueue, int]:
        return {q: position.offset for q, position in self._positions.items() if q.topic == topic}

    async def close(self) -> None:
        """Does nothing."""

    async def _commit(
        self,
        positions: Mapping[MessageQueue, _QueuePosition],
        *,
        metadata: str = "",
        force: bool = False,
        release: Iterable[MessageQueue] = (),
    ) -> list[tuple[offset_pb.CommitResult, int]]:
        # Copied: `update` may run during the call, and only the offsets that were sent are recorded
        # as stored.
        sent = [(queue, position.offset, position.epoch) for queue, position in positions.items()]
        hooks = self._cluster.hooks
        if hooks is None:
            return await self._commit_sent(sent, metadata, force=force, release=release)
        with hooks.on_commit(self._group, [(queue, offset) for queue, offset, _ in sent]):
            return await self._commit_sent(sent, metadata, force=force, release=release)

    async def _commit_sent(
        self,
        sent: Sequence[tuple[MessageQueue, int, int]],
        metadata: str,
        *,
        force: bool,
        release: Iterable[MessageQueue],
    ) -> list[tuple[offset_pb.CommitResult, int]]:
        reply = await self._cluster.call(
            self._cluster.offset_service().Commit,
            offset_pb.CommitRequest(
                group=self._group,
                member_id=self._member_id,
                entries=[
                    offset_pb.CommitEntry(
                        queue=queue_to_wire(queue), offset=offset, epoch=epoch, metadata=metadata
                    )
                    for queue, offset, epoch in sent
                ],
                force=force,
                release=map(queue_to_wire, release),
                mode=self._mode,
            ),
            unavailable=OffsetServiceUnavailable,
            timeout_seconds=MEMBER_COMMIT_SECONDS_MAX if self._member_id else CALL_SECONDS_MAX,
        )
        self.is_paused = reply.consume_disabled
        return [
            (result, offset) for result, (_, offset, _) in zip(reply.results, sent, strict=True)
        ]

    def _record_result(
        self,
        queue: MessageQueue,
        position: _QueuePosition,
        result: offset_pb.CommitResult,
        offset: int,
        stored: dict[MessageQueue, int],
        retriable: dict[MessageQueue, RockoonError],
        lost: dict[MessageQueue, RockoonError],
    ) -> None:
        if not result.HasField("error"):
            position.stored = offset
            stored[queue] = offset
            return
        error = from_wire(result.error)
        if isinstance(error, CommitBehind):
            # Another committer with the same epoch, for example an operator, is ahead.
            log.warning("%s: commit ignored, a higher offset is stored: %s", queue, error)
            position.stored = offset
            stored[queue] = result.offset
        elif error.retriable:
            retriable[queue] = error
        # If the queue was resolved again, the refusal concerns the former epoch.
        elif self._positions.get(queue) is position:
            lost[queue] = error
