"""A stream's progress as that of a consumer group, so that lag tools see the job.

The truth is Spark's checkpoint; the group follows it. Invariants:
- Only what Spark has finished is committed.
- Nothing is committed over the head of others: a group that live consumers read is refused, and a
  commit that a reset or a consumer has fenced off ends the stream.
"""

import logging
from collections.abc import Collection, Mapping

from rockoon.cluster import Cluster
from rockoon.errors import ConsumeDisabled, Fenced, OffsetServiceUnavailable, RockoonError
from rockoon.offsets.offset_store import RemoteOffsetStore
from rockoon.offsets.start import ConsumeFrom, Start
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1.nameserver_pb2 import SubscribeRequest
from rockoon_proto.v1.offset_pb2 import BROADCASTING, ListMembersRequest

log = logging.getLogger(__name__)

# Decisions about progress that somebody made; by any other there was none, or it fits no more.
_KEPT = frozenset({"COMMITTED", "RESET", "IMPORTED"})

# A stream does not wait longer for what it can do later.
_ASK_SECONDS_MAX = 3.0


class GroupInUse(Exception):
    """Live consumers read with the group that a stream is to commit for."""


class GroupFenced(Exception):
    """Somebody else has moved the group's progress."""


class GroupProgress:
    """The progress of one group, as an outside reader of some queues. Used by one event loop.

    Args:
        cluster: open.
        group: its name; it is made if it does not exist.
    """

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._store = RemoteOffsetStore(cluster, group)
        self._create_revisions: dict[MessageQueue, int] = {}
        # Queues on which nobody's progress was found.
        self._unread: set[MessageQueue] = set()
        self._revisions: dict[str, int] = {}
        self._is_behind = False

    async def join(self, create_revisions: Mapping[MessageQueue, int]) -> None:
        """Be known to the offset service as a reader of queues.

        Args:
            create_revisions: all queues that are read, with the etcd revisions of their creation.

        Raises:
            GroupInUse: live consumers read them with this group.
            RockoonError: the service does not answer, or refuses.
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
            # Only now: a queue that could not be joined for is asked about again.
            self._create_revisions[queue] = create_revisions[queue]
            if answer.reason not in _KEPT:
                self._unread.add(queue)

    def starts(self) -> dict[MessageQueue, int]:
        """Where the group is on each queue it was joined for."""
        found = {queue: self._store.read_memory(queue) for queue in self._create_revisions}
        return {queue: offset for queue, offset in found.items() if offset is not None}

    async def store(self, finished: Mapping[MessageQueue, int]) -> None:
        """Commit what is not committed yet; what cannot be for a while is kept for the next call.

        Args:
            finished: next offset to read of each queue that was joined for.

        Raises:
            GroupInUse, GroupFenced: see there.
            ConsumeDisabled: the group is paused.
        """
        news = {queue: offset for queue, offset in finished.items() if self._is_news(queue, offset)}
        if not news and not self._is_behind:
            return
        try:
            # Before any commit: one would take messages away from members who read them.
            await self._refuse_members({queue.topic for queue in news or finished})
            for queue, offset in news.items():
                await self._tell(queue, offset)
            persisted = await self._store.persist_all()
        except RockoonError as error:
            if not error.retriable:
                raise
            self._warn_behind(error)
            return
        if self._store.is_paused:
            raise ConsumeDisabled(group=self._group)
        for queue, failure in persisted.lost.items():
            self._lose(queue, failure)
        self._is_behind = bool(persisted.kept)
        for failure in persisted.kept.values():
            self._warn_behind(failure)
            break

    def _is_news(self, queue: MessageQueue, offset: int) -> bool:
        known = self._store.read_memory(queue)
        return known is not None and (offset > known or queue in self._unread)

    async def _tell(self, queue: MessageQueue, offset: int) -> None:
        known = self._store.read_memory(queue)
        if queue in self._unread and known is not None and offset < known:
            # The group's policy put it ahead of its only reader.
            try:
                await self._store.commit(queue, offset, force=True)
            except RockoonError as error:
                if error.retriable:
                    raise
                self._lose(queue, error)
        self._unread.discard(queue)
        self._store.update(queue, offset)

    def _lose(self, queue: MessageQueue, failure: RockoonError) -> None:
        """Give up a queue: a deleted one is told of by the plan, another reader's at once."""
        self._store.remove(queue)
        self._create_revisions.pop(queue, None)
        if isinstance(failure, Fenced):
            raise GroupFenced(
                f"group {self._group!r} cannot be committed for: {failure}. Its progress was reset,"
                " or a consumer read with it. The stream's own place is in Spark's checkpoint:"
                " started again, it goes on there and takes the group along. To go where the group"
                " is, start with a new checkpoint and option startingOffsets=group"
            ) from failure
        log.warning("group %s is not committed for on %s: %s", self._group, queue, failure)

    def _warn_behind(self, error: RockoonError) -> None:
        if not self._is_behind:
            log.warning("group %s is behind the stream for now: %s", self._group, error)
        self._is_behind = True

    async def _refuse_members(self, topics: Collection[str]) -> None:
        reply = await self._cluster.call(
            self._cluster.offset_service().ListMembers,
            ListMembersRequest(group=self._group),
            unavailable=OffsetServiceUnavailable,
            timeout_seconds=_ASK_SECONDS_MAX,
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
                f"{', '.join(members)} read with group {self._group!r}: a stream commits for a"
                " group of its own"
            )
