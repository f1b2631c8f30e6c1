"""Progress that a program stores itself, in a file or a database.

An `OffsetStore` decides where to start, and tracks which offsets have changed since the last write.
`CustomOffsetStore` does both for any storage; an `OffsetBackend` only reads and writes offsets. To
store progress in your own database, write a backend (two methods and a close):

    store = CustomOffsetStore(cluster, "billing", MyBackend(...))
    cluster.push_consumer("billing", {"orders": "*"}, handle, mode="broadcasting",
                          member_id="shop-7", offset_store=store)

`client/examples/exactly_once_sqlite.py` has a backend that commits rows and progress together.

Invariants:
- The start of a queue is stored before it is returned: after a crash, "the end of the queue" is
  still the same offset.
- Only resolved queues are written; each offset is stored with its queue's create revision.
"""

import asyncio
import warnings
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rockoon.admin.reads import ask_offset_service
from rockoon.errors import CommitBehind, ConsumeDisabled, QueueNotFound, RockoonError
from rockoon.net.connection import Connection
from rockoon.offsets.offset_lookup import OffsetLookup
from rockoon.offsets.offset_store import Persisted
from rockoon.offsets.start import ConsumeFrom, Position, Start, facts_of, start_on
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
    """All offsets in a backend, or the changed ones."""

    positions: dict[MessageQueue, Position] = field(default_factory=dict)
    since: dict[str, int] = field(default_factory=dict)
    """Topic → revision at which the reader first used it, from which new queues are recognized."""

    @property
    def places(self) -> dict[MessageQueue, Position]:
        """Deprecated: `positions`."""
        warnings.warn("places is now positions", DeprecationWarning, stacklevel=2)
        return self.positions


class OffsetBackend(Protocol):
    """Storage of progress. The store calls one method at a time."""

    async def load(self) -> OffsetSnapshot:
        """Open and lock the storage, and return its content; called once, before `write`.

        Raises:
            StoreLocked: another process uses the storage.
            StoreCorrupt: the content cannot be read.
            StoreNotWritable: the storage cannot be written.
        """
        ...

    async def write(self, changed: OffsetSnapshot) -> None:
        """Make changes durable, all or none. A position replaces the former one of its queue, also
        if it is lower.

        Raises:
            RockoonError: nothing was written; a retriable error is retried.
        """

    async def close(self) -> None:
        """Unlock and close the storage; also called after a failed `load`."""


@dataclass(slots=True)
class _ReadQueue:
    """State of a queue from Resolve until it is removed."""

    offset: int
    create_revision: int


class CustomOffsetStore:
    """Progress of one reader in a backend. Source of the interface: LocalFileOffsetStore.

    Args:
        cluster: the connection, used for the ends of queues and the group's policies.
        group: group whose start policy and out-of-range policies apply.
        backend: storage of progress.
    """

    def __init__(self, cluster: Connection, group: str, backend: OffsetBackend) -> None:
        self._cluster = cluster
        self._group = group
        self._backend = backend
        self._lookup = OffsetLookup(cluster)
        self._stored = OffsetSnapshot()
        self._queues: dict[MessageQueue, _ReadQueue] = {}
        # Parallel writes could leave the older offset.
        self._writing = asyncio.Lock()

    async def load(self) -> None:
        """Read the stored progress.

        Raises:
            StoreLocked, StoreCorrupt, StoreNotWritable: as the backend.
        """
        self._stored = await self._backend.load()

    async def close(self) -> None:
        """Close the backend; stores nothing."""
        async with self._writing:
            await self._backend.close()

    async def resolve(
        self, queues: Sequence[MessageQueue], consume_from: ConsumeFrom, route_revision: int = 0
    ) -> dict[MessageQueue, Start | RockoonError]:
        """Decide where to start, as `OffsetStore.resolve`. Queues of a broker that is away have its
        error; progress that the group's policy refuses has InvalidOffset or OffsetBeyondEnd.

        Raises:
            ConsumeDisabled: the group is paused.
            GroupNotFound, TopicNotFound: the group or topic was deleted.
            NameserverUnavailable: no nameserver answers with the group's policies.
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
            since[topic] = self._stored.since.get(topic) or self._cluster.routes.topic_revision(
                topic
            )
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
        await self._store_starts(starts, create_revisions, since)
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
        states = await self._lookup.states(queues)
        kept = self._stored.positions
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
        offsets = await self._lookup.search(
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
        """Return the cluster's rule for groups without a rule, from the offset service."""
        queue_ref = QueueRef(topic=queue.topic, broker=queue.broker, queue_id=queue.queue_id)
        request = QueryRequest(group=self._group, queue=queue_ref)
        reply: QueryReply = await ask_offset_service(self._cluster, "Query", request)
        return NewQueueRule(reply.rule)

    async def _store_starts(
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
        held = self._stored
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
        position = self._stored.positions.get(queue)
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
                != self._stored.positions.get(queue)
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
        """Store, as `persist`: no other member waits for these queues."""
        return await self.persist(queues)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Store an offset immediately.

        Raises:
            CommitBehind: a higher offset is stored already.
            KeyError: the queue was not resolved.
            RockoonError: the offset was not stored.
        """
        async with self._writing:
            read_queue = self._queues[queue]
            stored = self._stored.positions.get(queue)
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
