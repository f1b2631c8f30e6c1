"""Deletion of topics: hides their messages in the log and removes their queues.

In a log that never had another copy, a deletion applies immediately. Otherwise a record of the
deletion is appended, and the deletion applies when that record is committed.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from rockoon_broker.store.compacted.compaction import Compaction
from rockoon_broker.store.log.directory import DoomedDirectory
from rockoon_broker.store.log.epochs import Renewal
from rockoon_broker.store.log.syncer import Syncer
from rockoon_broker.store.queues.consume_queues import ConsumeQueues
from rockoon_broker.store.queues.dispatch_queue import DispatchQueue
from rockoon_broker.store.queues.dropped_topics import DroppedTopics
from rockoon_broker.store.recovery.recovery_points import RecoveryPoints
from rockoon_broker.store.retention.cleaner import Cleaner


class TopicDeletion:
    """Deletes topics of an open store; used by the store's thread.

    Args:
        dropped: stores the marks.
        points: provide the counts of the newest recovery points.
        undispatched, queues, compaction: drop the topics from memory.
        syncer, cleaner: delete their files.
    """

    def __init__(
        self,
        dropped: DroppedTopics,
        points: RecoveryPoints,
        undispatched: DispatchQueue,
        queues: ConsumeQueues,
        compaction: Compaction,
        syncer: Syncer,
        cleaner: Cleaner,
    ) -> None:
        self._dropped = dropped
        self._points = points
        self._undispatched = undispatched
        self._queues = queues
        self._compaction = compaction
        self._syncer = syncer
        self._cleaner = cleaner
        self._synced_end = 0

    def synced(self, end: int) -> None:
        """Set the end of a sync that was made without the Syncer."""
        self._synced_end = end

    def drop(self, topics: Sequence[str], below: int) -> None:
        """Delete topics' queues, durably; see `Store.drop_topics`."""
        self._mark(topics, below)
        self._undispatched.drop(topics)
        for topic in topics:
            self._drop(topic, self._queues.detach)

    def renew(self, renewal: Renewal) -> bool:
        """Drop records of restarted topics that precede a committed renewal.

        Returns:
            True when done; False if the record is not durable here yet. After a crash, a mark above
            the log's end would be clamped to that end, and records that are copied again would be
            visible.

        Raises:
            OSError: the disk. Call it again.
        """
        if renewal.end > max(self._syncer.synced_end, self._synced_end):
            return False
        marks = self._dropped.marks
        # A later deletion of the topic may already be known, which has dropped more.
        due = [topic for topic in renewal.topics if marks.get(topic, 0) <= renewal.first]
        if due:
            self._mark(due, renewal.first)
        for topic in due:
            self._drop(topic, self._queues.renew)
        for topic in renewal.topics:
            self._queues.renewed(topic)
        return True

    def _mark(self, topics: Sequence[str], below: int) -> None:
        """Store the marks durably, by one write for all topics; later steps can be repeated."""
        self._dropped.add(below, {topic: self._points.counted(topic) for topic in topics})

    def _drop(self, topic: str, detach: Callable[[str], Path | None]) -> None:
        self._compaction.drop(topic)
        self._syncer.withdraw_removals(self._queues.topic_directory(topic))
        self._cleaner.withdraw_swept(self._queues.topic_directory(topic))
        detached = detach(topic)
        if detached is not None:
            self._syncer.request_removal(DoomedDirectory(detached))
