"""Progress that a reader keeps itself, in a file or a database of its own.

An `OffsetStore` has to know where to start, and what changed since it was stored last. That part is
the same wherever offsets are kept, and is here; an `OffsetBackend` only reads and writes them. Keep
progress in your own database by writing a backend (two methods and a close):

    store = CustomOffsetStore(cluster, "billing", MyBackend(...))
    cluster.push_consumer("billing", {"orders": "*"}, handle, mode="broadcasting",
                          member_id="shop-7", offset_store=store)

`client/examples/exactly_once_sqlite.py` is one that commits rows and progress together.

Invariants:
- Where a queue starts is kept before it is answered: after a crash "behind the newest message" is
  the same place still.
- Nothing is written that was not resolved; an offset goes with its queue's create revision.
"""

import asyncio
import warnings
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rockoon.admin.offset_calls import ask_offset_service
from rockoon.errors import (
    CommitBehind,
    ConsumeDisabled,
    QueueNotFound,
    RockoonError,
)
from rockoon.net.connection import Connection
from rockoon.offsets.offset_lookup import OffsetLookup
from rockoon.offsets.offset_store import Persisted
from rockoon.offsets.own_start import Position, facts_of, start_on
from rockoon.offsets.start import ConsumeFrom, Start
from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import (
    NewQueueRule,
    policy_from_wire,
    rules_from_wire,
    search_timestamp_ms,
)
from rockoon_proto.v1.nameserver_pb2 import GetGroupReply, GetGroupRequest, GroupConfig
from rockoon_proto.v1.offset_pb2 import QueryReply, QueryRequest, QueueRef


@dataclass(slots=True)
class OffsetSnapshot:
    """All that a backend keeps, or a part of it that changed."""

    positions: dict[MessageQueue, Position] = field(default_factory=dict)
    since: dict[str, int] = field(default_factory=dict)
    """Topic to the revision at which its reader first looked at it: what tells new queues."""

    @property
    def places(self) -> dict[MessageQueue, Position]:
        """Deprecated: `positions`."""
        warnings.warn("places is now positions", DeprecationWarning, stacklevel=2)
        return self.positions


class OffsetBackend(Protocol):
    """Where progress is kept. The store calls one method at a time."""

    async def load(self) -> OffsetSnapshot:
        """Take hold of the place and return what is kept there; called once, first.

        Raises:
            StoreLocked: another process keeps its progress there.
            StoreCorrupt: what is there cannot be read.
            StoreNotWritable: nothing could be written there.
        """
        ...

    async def write(self, changed: OffsetSnapshot) -> None:
        """Make changes durable, all or none. A position replaces the former one of its queue,
        whether it is higher or lower.

        Raises:
            RockoonError: nothing was written; a retriable error is tried again.
        """

    async def close(self) -> None:
        """Let go of the place; also called after a `load` that failed."""


@dataclass(slots=True)
class _ReadQueue:
    """One reading of a queue, from Resolve until it is removed."""

    offset: int
    create_revision: int


class CustomOffsetStore:
    """Progress of one reader, kept by `backend`. Source of the interface: LocalFileOffsetStore.

    Args:
        cluster: asked where queues begin and end.
        group: whose start policy and out-of-range policies count.
        backend: where progress is kept.
    """

    def __init__(self, cluster: Connection, group: str, backend: OffsetBackend) -> None:
        self._cluster = cluster
        self._group = group
        self._backend = backend
        self._queue_places = OffsetLookup(cluster)
        self._kept = OffsetSnapshot()
        self._queues: dict[MessageQueue, _ReadQueue] = {}
        # Two writes at once could leave the older offset.
        self._writing = asyncio.Lock()

    async def load(self) -> None:
        """Read what is kept.

        Raises:
            StoreLocked, StoreCorrupt, StoreNotWritable: as the backend says.
        """
        self._kept = await self._backend.load()

    async def close(self) -> None:
        """Let go of the place where progress is kept. Stores nothing."""
        async with self._writing:
            await self._backend.close()

    async def resolve(
        self, queues: Sequence[MessageQueue], consume_from: ConsumeFrom, route_revision: int = 0
    ) -> dict[MessageQueue, Start | RockoonError]:
        """Decide where to start, as `OffsetStore.resolve`; queues of a broker that is away come
        with its error, and progress that the group's policy refuses with InvalidOffset or
        OffsetBeyondEnd.

        Raises:
            ConsumeDisabled: the group is paused.
            GroupNotFound, TopicNotFound: somebody deleted it.
            NameserverUnavailable: none of them can tell the group's policies.
        """
        group = await self._group_config()
        if group.consume_disabled:
            raise ConsumeDisabled(group=self._group)
        create_revisions: dict[MessageQueue, int] = {}
        since: dict[str, int] = {}
        for topic in {queue.topic for queue in queues}:
            create_revisions.update(
                (await self._cluster.route(topic, route_revision)).create_revisions
            )
            since[topic] = self._kept.since.get(topic) or self._cluster.routes.topic_revision(topic)
        found: dict[MessageQueue, Start | RockoonError] = {}
        by_broker: dict[str, list[MessageQueue]] = defaultdict(list)
        for queue in queues:
            if queue in create_revisions:
                by_broker[queue.broker].append(queue)
            else:
                found[queue] = QueueNotFound(
                    topic=queue.topic, queue=queue.queue_id, broker=queue.broker
                )
        for some in by_broker.values():
            try:
                found.update(await self._decide(some, create_revisions, since, group, consume_from))
            except RockoonError as error:
                found.update(dict.fromkeys(some, error))
        starts = [start for start in found.values() if isinstance(start, Start)]
        await self._keep_starts(starts, create_revisions, since)
        return found

    async def _group_config(self) -> GroupConfig:
        reply: GetGroupReply = await self._cluster.call_nameserver(
            "GetGroup", GetGroupRequest(group=self._group)
        )
        return reply.group.config

    async def _decide(
        self,
        queues: list[MessageQueue],
        create_revisions: Mapping[MessageQueue, int],
        since: Mapping[str, int],
        group: GroupConfig,
        reader: ConsumeFrom,
    ) -> dict[MessageQueue, Start | RockoonError]:
        states = await self._queue_places.states(queues)
        kept = self._kept.positions
        unread = [queue for queue in queues if queue not in kept]
        cluster_rule = NewQueueRule.EXACT
        if unread and not group.new_queue_rule:
            cluster_rule = await self._cluster_rule(unread[0])
        rules = rules_from_wire(group, policy_from_wire(reader.to_wire()), cluster_rule)
        facts = {
            queue: facts_of(
                queue,
                create_revisions[queue],
                states[queue],
                since[queue.topic],
                rules,
                kept.get(queue),
            )
            for queue in queues
        }
        times = {queue: search_timestamp_ms(known) for queue, known in facts.items()}
        offsets = await self._queue_places.search(
            {queue: time for queue, time in times.items() if time is not None}
        )
        found: dict[MessageQueue, Start | RockoonError] = {}
        for queue, known in facts.items():
            try:
                found[queue] = start_on(queue, known, offsets.get(queue))
            except RockoonError as error:
                found[queue] = error
        return found

    async def _cluster_rule(self, queue: MessageQueue) -> NewQueueRule:
        """The rule in force for a group that does not say, which the offset service knows."""
        place = QueueRef(topic=queue.topic, broker=queue.broker, queue_id=queue.queue_id)
        request = QueryRequest(group=self._group, queue=place)
        reply: QueryReply = await ask_offset_service(self._cluster, "Query", request)
        return NewQueueRule(reply.rule)

    async def _keep_starts(
        self,
        starts: Iterable[Start],
        create_revisions: Mapping[MessageQueue, int],
        since: Mapping[str, int],
    ) -> None:
        async with self._writing:
            positions = {
                start.queue: Position(start.offset, create_revisions[start.queue])
                for start in starts
            }
            await self._write(positions, since)
            for queue, position in positions.items():
                self._queues[queue] = _ReadQueue(position.offset, position.create_revision)

    async def _write(
        self, positions: Mapping[MessageQueue, Position], since: Mapping[str, int] | None = None
    ) -> None:
        held = self._kept
        changed = OffsetSnapshot(
            {q: position for q, position in positions.items() if held.positions.get(q) != position},
            {t: revision for t, revision in (since or {}).items() if held.since.get(t) != revision},
        )
        if changed.positions or changed.since:
            await self._backend.write(changed)
            held.positions.update(changed.positions)
            held.since.update(changed.since)

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool = True) -> None:
        read_queue = self._queues.get(queue)
        if read_queue is not None and (offset > read_queue.offset or not increase_only):
            read_queue.offset = offset

    def read_memory(self, queue: MessageQueue) -> int | None:
        read_queue = self._queues.get(queue)
        return read_queue.offset if read_queue else None

    async def read_store(self, queue: MessageQueue) -> int | None:
        position = self._kept.positions.get(queue)
        return position.offset if position else None

    async def read(self, queue: MessageQueue) -> int | None:
        remembered = self.read_memory(queue)
        return await self.read_store(queue) if remembered is None else remembered

    async def persist(self, queues: Collection[MessageQueue]) -> Persisted:
        async with self._writing:
            positions = {
                queue: position
                for queue in queues
                if (read_queue := self._queues.get(queue))
                and (position := Position(read_queue.offset, read_queue.create_revision))
                != self._kept.positions.get(queue)
            }
            try:
                await self._write(positions)
            except RockoonError as error:
                if not error.retriable:
                    raise
                return Persisted(kept=dict.fromkeys(positions, error))
            return Persisted(
                stored={queue: position.offset for queue, position in positions.items()}
            )

    async def persist_all(self) -> Persisted:
        return await self.persist(list(self._queues))

    async def release(self, queues: Collection[MessageQueue]) -> Persisted:
        """Store as `persist` does: nobody else waits for these queues."""
        return await self.persist(queues)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Store an offset now.

        Raises:
            CommitBehind: more is stored already.
            KeyError: the queue was never resolved.
            RockoonError: it was not stored.
        """
        async with self._writing:
            read_queue = self._queues[queue]
            stored = self._kept.positions.get(queue)
            if (
                stored is not None
                and stored.create_revision == read_queue.create_revision
                and offset < stored.offset
            ):
                raise CommitBehind(offset=offset, stored=stored.offset, queue=queue)
            await self._write({queue: Position(offset, read_queue.create_revision)})
            read_queue.offset = max(read_queue.offset, offset)

    def remove(self, queue: MessageQueue) -> None:
        self._queues.pop(queue, None)

    def clone(self, topic: str) -> dict[MessageQueue, int]:
        return {q: read_queue.offset for q, read_queue in self._queues.items() if q.topic == topic}
