"""Offset stores: a group's progress in a consumer's memory, and the store behind it.

Invariants:
- Memory never goes back, unless it is told to; a queue that was given up has no memory, so a late
  result of its former reading cannot be committed.
- What was updated is either stored, or still to be stored, or reported: never silently lost.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rockoon.errors import CommitBehind, OffsetServiceUnavailable, RockoonError, from_wire
from rockoon.net.connection import CALL_SECONDS_MAX, Connection
from rockoon.offsets.start import ConsumeFrom, Start
from rockoon_core.bulk_calls import in_calls
from rockoon_core.message_queue import MessageQueue, queue_to_wire
from rockoon_core.repeated_lines import limited
from rockoon_proto.v1.offset_pb2 import (
    BROADCASTING,
    CLUSTERING,
    CommitEntry,
    CommitRequest,
    CommitResult,
    QueryRequest,
    ResolveRequest,
)

log = limited(logging.getLogger(__name__))

# A member's commits are tried again by themselves: rather that than to wait for one long. Others'
# fail to their caller.
MEMBER_COMMIT_SECONDS_MAX = 3.0


@dataclass(frozen=True, slots=True)
class Persisted:
    """What became of the offsets that were to be stored."""

    stored: Mapping[MessageQueue, int] = field(default_factory=dict)
    kept: Mapping[MessageQueue, RockoonError] = field(default_factory=dict)
    """Not stored for a reason that can pass: the next call tries again."""
    lost: Mapping[MessageQueue, RockoonError] = field(default_factory=dict)
    """This reader no longer has the queue, or its offset does not fit it any more: give up what
    was read of it and resolve again."""


class OffsetStore(Protocol):
    """RocketMQ's OffsetStore: the progress of one group, as one consumer sees it.

    A consumer takes any object with these methods (`offset_store=`). To keep offsets elsewhere, the
    few methods of a `rockoon.OffsetBackend` are enough; write a whole store to decide where queues
    start as well. One consumer calls it from one event loop: `load` first, `close` last, `update`
    of a queue only between its `resolve` and `remove`.
    """

    async def load(self) -> None:
        """Get ready to answer; reads what is kept locally, if anything is."""

    async def resolve(
        self, queues: Sequence[MessageQueue], consume_from: ConsumeFrom, route_revision: int = 0
    ) -> Mapping[MessageQueue, Start | RockoonError]:
        """Decide where to start on each queue, and remember it.

        Raises:
            RockoonError: nothing could be decided.
        """
        ...

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool = True) -> None:
        """Remember the next offset to consume; ignored for a queue that was never resolved."""

    def read_memory(self, queue: MessageQueue) -> int | None:
        """Return what is remembered."""
        ...

    async def read_store(self, queue: MessageQueue) -> int | None:
        """Return what is stored."""
        ...

    async def read(self, queue: MessageQueue) -> int | None:
        """Return what is remembered, or else what is stored."""
        ...

    async def persist(self, queues: Collection[MessageQueue]) -> Persisted:
        """Store what is remembered of some queues and not stored yet.

        Raises:
            RockoonError: the group itself is gone; whatever can pass is reported as kept.
        """
        ...

    async def persist_all(self) -> Persisted:
        """Store everything that is not stored yet, as `persist` does."""
        ...

    async def release(self, queues: Collection[MessageQueue]) -> Persisted:
        """Store as `persist` does and, in the same call, say that this reader has done with the
        queues: another member may have them at once. What is kept was not released either.
        """
        ...

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Store an offset now.

        Raises:
            RockoonError: it was not stored.
        """

    def remove(self, queue: MessageQueue) -> None:
        """Forget a queue; what is stored stays."""

    def clone(self, topic: str) -> dict[MessageQueue, int]:
        """Return what is remembered of a topic's queues."""
        ...

    async def close(self) -> None:
        """Let go of what `load` took hold of, also when it failed; stores nothing."""


@dataclass(slots=True)
class _Position:
    """One reading of a queue, from Resolve until it is removed or resolved again. Identity tells
    readings apart: an answer that comes after the next Resolve must not touch that one."""

    offset: int
    epoch: int
    stored: int


class RemoteOffsetStore:
    """Progress in the offset service. Source of the interface: RemoteBrokerOffsetStore.

    Args:
        cluster: where to find the service.
        group: whose progress.
        member_id: who commits; empty for a reader outside membership.
        own: the progress is the member's own (a group with BROADCAST_SERVER), not the group's.
    """

    def __init__(
        self, cluster: Connection, group: str, member_id: str = "", *, own: bool = False
    ) -> None:
        self.is_paused = False
        """Whether nobody is to read in the group, as of the last commit or the last start."""
        self._cluster = cluster
        self._group = group
        self._member_id = member_id
        self._own_member = member_id if own else ""
        self._mode = BROADCASTING if own else CLUSTERING
        self._positions: dict[MessageQueue, _Position] = {}
        # Two calls at once could store an older offset after a newer one.
        self._storing = asyncio.Lock()

    async def load(self) -> None:
        """Nothing to do: the service is asked when a queue is resolved."""

    async def resolve(
        self, queues: Sequence[MessageQueue], consume_from: ConsumeFrom, route_revision: int = 0
    ) -> dict[MessageQueue, Start | RockoonError]:
        """Decide where to start, as `OffsetStore.resolve`. Cancelling it is safe: a decision that
        was stored is found again by the next call."""
        found: dict[MessageQueue, Start | RockoonError] = {}
        for some in in_calls(queues):
            reply = await self._cluster.call(
                self._cluster.offset_service().Resolve,
                ResolveRequest(
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
                self._positions[queue] = _Position(start.offset, start.epoch, start.offset)
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
        """Return what RocketMQ's query would, the new-queue rule applied; None if not found."""
        reply = await self._cluster.call(
            self._cluster.offset_service().Query,
            QueryRequest(group=self._group, queue=queue_to_wire(queue), member=self._own_member),
            unavailable=OffsetServiceUnavailable,
        )
        return reply.offset if reply.found else None

    async def read(self, queue: MessageQueue) -> int | None:
        remembered = self.read_memory(queue)
        return await self.read_store(queue) if remembered is None else remembered

    async def persist(self, queues: Collection[MessageQueue]) -> Persisted:
        return await self._persist(queues, is_last=False)

    async def release(self, queues: Collection[MessageQueue]) -> Persisted:
        return await self._persist(queues, is_last=bool(self._member_id))

    async def _persist(self, queues: Collection[MessageQueue], *, is_last: bool) -> Persisted:
        async with self._storing:
            waiting = {
                queue: position
                for queue in queues
                if (position := self._positions.get(queue)) and position.offset != position.stored
            }
            stored: dict[MessageQueue, int] = {}
            kept: dict[MessageQueue, RockoonError] = {}
            lost: dict[MessageQueue, RockoonError] = {}
            # The last time all of them: where progress is stored already, only the release tells
            # that the queue is not read here any more.
            for some in in_calls(queues if is_last else waiting):
                positions = {queue: waiting[queue] for queue in some if queue in waiting}
                try:
                    results = await self._commit(positions, release=some if is_last else ())
                except RockoonError as error:
                    if not error.retriable:
                        raise
                    kept.update(dict.fromkeys(some, error))
                    continue
                for (queue, position), (result, offset) in zip(
                    positions.items(), results, strict=True
                ):
                    self._note(queue, position, result, offset, stored, kept, lost)
            return Persisted(stored, kept, lost)

    async def persist_all(self) -> Persisted:
        return await self.persist(list(self._positions))

    async def commit(
        self, queue: MessageQueue, offset: int, *, metadata: str = "", force: bool = False
    ) -> None:
        """Store an offset now.

        Args:
            queue: one that was resolved.
            offset: next offset to consume.
            metadata: kept with the offset, at most 4096 bytes.
            force: also when it is below what is stored.

        Raises:
            Fenced: another member or a reset took the queue.
            CommitBehind: more is stored already, and `force` was not given.
            OffsetBeyondEnd: the queue ends before the offset.
            OffsetServiceUnavailable: the service does not answer; it may have stored it.
            KeyError: the queue was never resolved.
        """
        async with self._storing:
            position = self._positions[queue]
            chosen = _Position(offset, position.epoch, position.stored)
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
        """Nothing to do."""

    async def _commit(
        self,
        positions: Mapping[MessageQueue, _Position],
        *,
        metadata: str = "",
        force: bool = False,
        release: Iterable[MessageQueue] = (),
    ) -> list[tuple[CommitResult, int]]:
        # Copied: `update` goes on while the call is out, and what is noted as stored must be what
        # was sent.
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
    ) -> list[tuple[CommitResult, int]]:
        reply = await self._cluster.call(
            self._cluster.offset_service().Commit,
            CommitRequest(
                group=self._group,
                member_id=self._member_id,
                entries=[
                    CommitEntry(
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

    def _note(
        self,
        queue: MessageQueue,
        position: _Position,
        result: CommitResult,
        offset: int,
        stored: dict[MessageQueue, int],
        kept: dict[MessageQueue, RockoonError],
        lost: dict[MessageQueue, RockoonError],
    ) -> None:
        if not result.HasField("error"):
            position.stored = offset
            stored[queue] = offset
            return
        error = from_wire(result.error)
        if isinstance(error, CommitBehind):
            # Somebody who shares the epoch, an operator for example, is further than we are.
            log.warning("%s: our offset is not needed: %s", queue, error)
            position.stored = offset
            stored[queue] = result.offset
        elif error.retriable:
            kept[queue] = error
        # Not where it was resolved again meanwhile: the refusal is about the former grant.
        elif self._positions.get(queue) is position:
            lost[queue] = error
