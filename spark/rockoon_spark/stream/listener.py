"""A stream's progress, committed for a consumer group, so that lag tools show the stream.

Spark's checkpoint decides which messages are read; the group's progress follows it. Invariants:

- Only offsets of finished batches are committed.
- A stream does not overwrite the progress of other readers: a group with live consumers is refused.
  If a reset or a consumer fences a commit, the stream ends.

Without `BatchEnds`, a stream commits when Spark plans the next batch: within moments, unless the
query has a `Trigger.ProcessingTime` of minutes.
"""

import json
import logging
from collections.abc import Collection, Mapping
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from rockoon.cluster import Cluster
from rockoon.errors import ConsumeDisabled, Fenced, OffsetServiceUnavailable, RockoonError
from rockoon.offsets.offset_store import RemoteOffsetStore
from rockoon.offsets.start import ConsumeFrom, Start
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1.nameserver_pb2 import SubscribeRequest
from rockoon_proto.v1.offset_pb2 import BROADCASTING, ListMembersRequest
from rockoon_spark.endpoint import AnyEndpoint, connect
from rockoon_spark.stream.plan import CheckpointError, StreamOffsets

log = logging.getLogger(__name__)

# Reasons of start positions that come from stored progress. With any other reason, the group has no
# valid progress.
_FROM_PROGRESS = frozenset({"COMMITTED", "RESET", "IMPORTED", "RESTORED"})

# Short, because a stream can repeat the call with the next batch.
_CALL_SECONDS_MAX = 3.0


class GroupInUse(Exception):
    """Live consumers read with the group of a stream."""


class GroupFenced(Exception):
    """Another reader or a reset has changed the group's progress."""


class GroupProgress:
    """Commits a stream's offsets as the progress of one consumer group, without joining the group.

    Used by one event loop.

    Args:
        cluster: an open connection.
        group: its name; it is created if it does not exist.
    """

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._store = RemoteOffsetStore(cluster, group)
        self._create_revisions: dict[MessageQueue, int] = {}
        # Queues without stored progress of the group.
        self._unread: set[MessageQueue] = set()
        self._revisions: dict[str, int] = {}
        self._is_behind = False

    async def join(self, create_revisions: Mapping[MessageQueue, int]) -> None:
        """Resolve the group's progress in new queues; must precede commits for them.

        Args:
            create_revisions: all queues that are read, with their create revisions.

        Raises:
            GroupInUse: live consumers read them with this group.
            RockoonError: the offset service does not answer, or refuses the call.
        """
        new = [
            queue
            for queue, create_revision in create_revisions.items()
            if self._create_revisions.get(queue) != create_revision
        ]
        if not new:
            return
        await self._refuse_members({queue.topic for queue in create_revisions})
        for topic in sorted({queue.topic for queue in new} - self._revisions.keys()):
            reply = await self._cluster.call_nameserver(
                "Subscribe", SubscribeRequest(group=self._group, topic=topic, create_group=True)
            )
            self._revisions[topic] = reply.revision
        topics = {queue.topic for queue in new}
        revision = max(self._cluster.routes.topic_revision(topic) for topic in topics)
        revision = max(revision, *(self._revisions[topic] for topic in topics))
        found = await self._store.resolve(new, ConsumeFrom.FIRST, revision)
        for queue, answer in found.items():
            if not isinstance(answer, Start):
                raise answer
            # Set after the answer, so that the next call resolves a failed queue again.
            self._create_revisions[queue] = create_revisions[queue]
            if answer.reason not in _FROM_PROGRESS:
                self._unread.add(queue)

    def starts(self) -> dict[MessageQueue, int]:
        """Return the group's committed offset in each joined queue."""
        found = {queue: self._store.read_memory(queue) for queue in self._create_revisions}
        return {queue: offset for queue, offset in found.items() if offset is not None}

    async def store(self, finished: Mapping[MessageQueue, int]) -> None:
        """Commit new offsets; after a temporary failure, the next call commits them.

        Args:
            finished: offset of the next message of each joined queue.

        Raises:
            GroupInUse, GroupFenced: see their docstrings.
            ConsumeDisabled: the group is paused.
        """
        new = {queue: offset for queue, offset in finished.items() if self._is_new(queue, offset)}
        if not new and not self._is_behind:
            return
        try:
            # Checked before a commit, because a commit would skip messages of live consumers.
            await self._refuse_members({queue.topic for queue in new or finished})
            for queue, offset in new.items():
                await self._update(queue, offset)
            persisted = await self._store.persist_all()
        except RockoonError as error:
            if not error.retriable:
                raise
            self._warn_behind(error)
            return
        if self._store.is_paused:
            raise ConsumeDisabled(group=self._group)
        for queue, failure in persisted.lost.items():
            self._abandon(queue, failure)
        self._is_behind = bool(persisted.kept)
        for failure in persisted.kept.values():
            self._warn_behind(failure)
            break

    def _is_new(self, queue: MessageQueue, offset: int) -> bool:
        known = self._store.read_memory(queue)
        return known is not None and (offset > known or queue in self._unread)

    async def _update(self, queue: MessageQueue, offset: int) -> None:
        known = self._store.read_memory(queue)
        if queue in self._unread and known is not None and offset < known:
            # The group's start policy set its offset ahead of the stream, its only reader.
            try:
                await self._store.commit(queue, offset, force=True)
            except RockoonError as error:
                if error.retriable:
                    raise
                self._abandon(queue, error)
        self._unread.discard(queue)
        self._store.update(queue, offset)

    def _abandon(self, queue: MessageQueue, failure: RockoonError) -> None:
        """Stop commits for a queue, because the commit was refused.

        Raises:
            GroupFenced: the commit was fenced. For a deleted queue, the plan reports the loss.
        """
        self._store.remove(queue)
        self._create_revisions.pop(queue, None)
        if isinstance(failure, Fenced):
            raise GroupFenced(
                f"commit for group {self._group!r} failed: {failure}. Its progress was reset,"
                " or a consumer read with it. If the stream is started again, it continues at the"
                " offsets in Spark's checkpoint and commits them for the group. To continue at the"
                " group's progress, start with a new checkpoint and option startingOffsets=group"
            ) from failure
        log.warning(
            "group %s: no more commits for queue %s, because one failed: %s",
            self._group,
            queue,
            failure,
        )

    def _warn_behind(self, error: RockoonError) -> None:
        if not self._is_behind:
            log.warning("commit for group %s delayed until the next batch: %s", self._group, error)
        self._is_behind = True

    async def _refuse_members(self, topics: Collection[str]) -> None:
        reply = await self._cluster.call(
            self._cluster.offset_service().ListMembers,
            ListMembersRequest(group=self._group),
            unavailable=OffsetServiceUnavailable,
            timeout_seconds=_CALL_SECONDS_MAX,
        )
        members = [
            member.member_id
            for group in reply.groups
            for member in group.members
            if member.mode != BROADCASTING
            and any(each.topic in topics for each in member.subscriptions)
        ]
        if members:
            raise GroupInUse(
                f"{', '.join(members)} read with group {self._group!r}: use another group for the"
                " stream"
            )


class BatchEnds(StreamingQueryListener):
    """Commits the offsets of finished batches. Spark calls it from one thread.

    Args:
        endpoint: of the cluster.

    Raises:
        NameserverUnavailable: no nameserver answers.
    """

    def __init__(self, endpoint: AnyEndpoint) -> None:
        self._blocking = connect(endpoint)
        self._blocking.__enter__()
        self._groups: dict[str, GroupProgress] = {}

    def close(self) -> None:
        """Close the connection to the cluster, after Spark has removed the listener."""
        self._blocking.__exit__(None, None, None)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        for source in event.progress.sources:
            try:
                content = json.loads(source.endOffset)
                if content.get("group"):
                    self._commit(content)
            except (ValueError, AttributeError, TypeError, CheckpointError):
                # Progress of another kind of source.
                continue
            except (RockoonError, GroupInUse, GroupFenced) as error:
                # Not raised: the stream gets the same error when it plans its next batch.
                log.warning("query %s: commit failed: %s", event.progress.id, error)

    def _commit(self, content: dict[str, Any]) -> None:
        group, offsets = content["group"], StreamOffsets.parse(content)
        if group not in self._groups:
            self._groups[group] = GroupProgress(self._blocking.asyncio, group)
        progress = self._groups[group]

        async def commit() -> None:
            for topic in {queue.topic for queue in offsets.queues}:
                await self._blocking.asyncio.route(topic)
            await progress.join(
                {queue: position.create_revision for queue, position in offsets.queues.items()}
            )
            await progress.store(
                {queue: position.offset for queue, position in offsets.queues.items()}
            )

        self._blocking.call(commit())

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: a query that starts has no offsets to commit."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: an idle query has no new offsets to commit."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing: Spark has reported all finished batches before."""
