"""Deletion of topics: what the log holds of them is as if it had never been.

At once, of a log that never had another copy; of others behind a record that says so, when it is
committed.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from rockoon_broker.store.compacted.compaction import Compaction
from rockoon_broker.store.log.epochs import Renewal
from rockoon_broker.store.log.removals import DoomedDirectory
from rockoon_broker.store.log.syncer import Syncer
from rockoon_broker.store.queues.consume_queues import ConsumeQueues
from rockoon_broker.store.queues.dispatch_queue import DispatchQueue
from rockoon_broker.store.queues.dropped_topics import DroppedTopics
from rockoon_broker.store.recovery.recovery_points import RecoveryPoints
from rockoon_broker.store.retention.cleaner import Cleaner


class TopicDeletion:
    """Deletes topics of an open store; used by the thread that owns it.

    Args:
        dropped: gets the marks.
        points: say what they counted.
        undispatched, queues, compaction: what forgets the topics.
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
        """The log is durable up to a physical offset, which the Syncer does not know."""
        self._synced_end = end

    def drop(self, topics: Sequence[str], below: int) -> None:
        """See `Store.drop_topics`."""
        self._mark(topics, below)
        self._undispatched.drop(topics)
        for topic in topics:
            self._drop(topic, self._queues.set_aside)

    def renew(self, renewal: Renewal) -> bool:
        """Drop what is before a committed record of topics that begin anew with it.

        Returns:
            Whether that is done; not before the record is durable here. A mark behind the log's end
            would after a crash be taken for one at its end, and show what is copied once more.

        Raises:
            OSError: the disk. Call it again.
        """
        if renewal.end > max(self._syncer.synced_end, self._synced_end):
            return False
        marks = self._dropped.marks
        # Of others a later deletion is known already: what this one would drop is gone.
        due = [topic for topic in renewal.topics if marks.get(topic, 0) <= renewal.first]
        if due:
            self._mark(due, renewal.first)
        for topic in due:
            self._drop(topic, self._queues.renew)
        for topic in renewal.topics:
            self._queues.renewed(topic)
        return True

    def _mark(self, topics: Sequence[str], below: int) -> None:
        """Durably, by one write for all: whatever follows may be done again."""
        self._dropped.add(below, {topic: self._points.counted(topic) for topic in topics})

    def _drop(self, topic: str, set_aside: Callable[[str], Path | None]) -> None:
        self._compaction.drop(topic)
        self._syncer.withdraw_removals(self._queues.topic_directory(topic))
        self._cleaner.withdraw_swept(self._queues.topic_directory(topic))
        aside = set_aside(topic)
        if aside is not None:
            self._syncer.request_removal(DoomedDirectory(aside))
