"""A stream's progress, committed for a consumer group, so that lag tools show the stream.

The stream's own offsets (Spark's checkpoint, or an Iceberg table) decide which messages are read;
the group's progress follows them. Invariants:

- Only offsets of finished batches are committed.
- A stream does not overwrite the progress of other readers: a group with live consumers is refused.
  If a reset or a consumer fences a commit, the stream ends.
"""

import logging
from collections.abc import Collection, Mapping

from rockoon.errors import ConsumeDisabled, Fenced, OffsetServiceUnavailable, RockoonError
from rockoon.net.connection import Connection
from rockoon.offsets.offset_store import RemoteOffsetStore
from rockoon.offsets.start import ConsumeFrom, Start
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1.nameserver_pb2 import SubscribeRequest
from rockoon_proto.v1.offset_pb2 import BROADCASTING, ListMembersRequest

log = logging.getLogger(__name__)

# Reasons of start positions that come from stored progress. With any other reason, the group has no
# valid progress.
_FROM_PROGRESS = frozenset({"COMMITTED", "RESET", "IMPORTED", "RESTORED"})

# Short, because a stream can repeat the call with the next batch.
_CALL_SECONDS_MAX = 3.0


class GroupInUse(Exception):
    """Live consumers read with the group of a stream."""


AFTER_FENCE = (
    "If the stream is started again, it continues at the offsets in Spark's checkpoint and commits"
    " them for the group. To continue at the group's progress, start with a new checkpoint and"
    " option startingOffsets=group"
)


class GroupFenced(Exception):
    """Another reader or a reset has changed the group's progress."""


class GroupProgress:
    """Commits a stream's offsets as the progress of one consumer group, without joining the group.

    Used by one event loop.

    Args:
        cluster: an open connection.
        group: its name; it is created if it does not exist.
        after_fence: sentences of `GroupFenced` about the next start of the stream.
    """

    def __init__(self, cluster: Connection, group: str, after_fence: str) -> None:
        self._cluster = cluster
        self._group = group
        self._after_fence = after_fence
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
                f" or a consumer read with it. {self._after_fence}"
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
