"""Checks that a generation belongs to this log and follows the active generation.

A generation that does not fit would hide messages or show deleted ones. So each rule is
checked against the store's own data; a manifest is trusted only where its files and the
log confirm it.
"""

import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from rockoon_broker.store.log.commit_log import CommitLog
from rockoon_broker.store.queues.consume_queue import ConsumeQueue, QueueKey
from rockoon_broker.store.queues.consume_queues import ConsumeQueues
from rockoon_format.consume_queue import FILLER_SIZE
from rockoon_format.generation import CoveredQueue, GenerationTopic, LogTail, Manifest, tail_start

# Entries per read in the search for the first one that lists a record.
_ENTRIES_PER_READ = 1024


class Unfit(Exception):
    """A generation cannot be adopted; the message is a sentence with the reason."""


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """State of the store when a generation is checked."""

    log: CommitLog
    queues: ConsumeQueues
    marks: Mapping[str, int]
    """Topic to the physical offset below which its records were deleted, either with the topic or
    by retention while it was not compacted."""
    active: Manifest | None
    compacted: Collection[str]
    """Topics that are compacted."""


def log_tail(log: CommitLog, log_end: int) -> LogTail:
    """Return the manifest's fingerprint of a log that is read up to `log_end`. Raises OSError."""
    start = tail_start(log_end, log.file_bytes)
    data = log.read(start, log_end - start) if start < log_end else b""
    return LogTail(start, len(data), zlib.crc32(data))


def check_log(manifest: Manifest, log: CommitLog) -> None:
    """Check that a generation was made from this log. If retention has deleted the end of the
    generation's range from the log, the bytes before this end are not compared.

    Raises:
        Unfit: it was made from another log.
        OSError: the disk.
    """
    end = manifest.log_end
    if end > log.end:
        raise Unfit(f"it was made of a log up to {end}, but this log ends at {log.end}")
    if end > log.min_offset and log_tail(log, end) != manifest.log_tail:
        raise Unfit(f"its log differs from this log before {end}")


def check_fit(manifest: Manifest, store: StoreFacts) -> None:
    """Check whether a generation may replace the active one; the log must be durable up to its end.

    Raises:
        Unfit: it may not.
        OSError: the disk.
    """
    active = store.active.generation if store.active else 0
    if manifest.replaces != active:
        raise Unfit(f"it replaces generation {manifest.replaces}, but {active} is active")
    log_min = store.log.min_offset
    if manifest.log_end <= log_min and store.log.files:
        # Nothing is left to compare. A deletion of a topic may have been discarded, and newer
        # messages of a topic that was not compacted for a while may be deleted.
        raise Unfit(
            f"it was made of a log up to {manifest.log_end}, but this log begins at {log_min}"
        )
    check_log(manifest, store.log)
    if store.active and manifest.log_end < store.active.log_end:
        raise Unfit(
            f"it ends at {manifest.log_end}, before the active one at {store.active.log_end}"
        )
    listed = _by_key(topic for topic in manifest.topics if not is_dropped_since(topic, store.marks))
    former = _by_key(
        topic
        for topic in (store.active.topics if store.active else ())
        if not is_dropped_since(topic, store.marks)
    )
    topics = {topic.topic for topic in manifest.topics}
    for topic in manifest.topics:
        # Records of a topic that was deleted since are never shown, so they need no check.
        if not is_dropped_since(topic, store.marks):
            _check_mark(topic, store)
            # A generation would hide its newer messages in the log, which are no longer compacted.
            if topic.queues and topic.topic not in store.compacted:
                raise Unfit(f"{topic.topic} is no longer compacted")
    for key, covered in listed.items():
        _check_queue(key, covered, former.get(key), manifest.log_end, store)
    for queue in store.queues:
        if queue.topic in topics and queue.key not in listed:
            _check_unlisted(queue, manifest, store)
    for topic_name, queue_id in former:
        # Messages of the active generation must not be lost.
        if topic_name in store.compacted and (topic_name, queue_id) not in listed:
            raise Unfit(f"it lacks queue {queue_id} of {topic_name}, which the active one contains")


def check_copy(manifest: Manifest, store: StoreFacts) -> None:
    """Check whether a copy of the leader's active generation may become active here.

    The leader has checked it against everything that it knows. This copy's log may begin
    elsewhere, and this copy does not know the compacted topics. So only the log is compared.

    Raises: see `check_fit`.
    """
    check_log(manifest, store.log)
    if store.active and manifest.log_end < store.active.log_end:
        raise Unfit(f"it ends at {manifest.log_end}, but this copy's at {store.active.log_end}")


def lowest_marks(manifests: Iterable[Manifest]) -> dict[str, int]:
    """Return the lowest deletion mark of each topic in the given generations."""
    lowest: dict[str, int] = {}
    for topic in (topic for manifest in manifests for topic in manifest.topics):
        lowest[topic.topic] = min(topic.dropped_below, lowest.get(topic.topic, topic.dropped_below))
    return lowest


def is_dropped_since(topic: GenerationTopic, marks: Mapping[str, int]) -> bool:
    """Return whether the topic was deleted, or lost newer messages by retention, after its records
    were read. Then no record may be shown."""
    return marks.get(topic.topic, 0) > topic.dropped_below


def first_listed(
    queue: ConsumeQueue, offset: int, queues: ConsumeQueues, log: CommitLog
) -> int | None:
    """Return the physical offset of a queue's first record in the log from a queue offset on; None
    if none.

    If an entry is implausible, returns the beginning of the log. Raises OSError.
    """
    at = max(offset, queues.min_offset(queue, log.min_offset))
    while at < queue.max_offset:
        entries = queues.read(queue, at, _ENTRIES_PER_READ)
        if len(entries) == 0:
            return log.min_offset
        listed = entries[entries["size"] != FILLER_SIZE]
        if len(listed):
            position, size = int(listed[0]["offset"]), int(listed[0]["size"])
            plausible = size > 0 and log.min_offset <= position < log.end
            return position if plausible else log.min_offset
        at += len(entries)
    return None


def _by_key(topics: Iterable[GenerationTopic]) -> dict[QueueKey, CoveredQueue]:
    return {(topic.topic, queue.queue): queue for topic in topics for queue in topic.queues}


def _check_mark(topic: GenerationTopic, store: StoreFacts) -> None:
    mark = store.marks.get(topic.topic, 0)
    if topic.dropped_below > max(mark, store.log.min_offset):
        raise Unfit(
            f"it has {topic.topic} as deleted below {topic.dropped_below}, "
            f"but here it was deleted below {mark}"
        )


def _check_queue(
    key: QueueKey,
    covered: CoveredQueue,
    before: CoveredQueue | None,
    log_end: int,
    store: StoreFacts,
) -> None:
    """Compare the covered range of a queue with the queue and with the active generation."""
    topic, queue_id = key
    place = f"queue {queue_id} of {topic}"
    queue = store.queues.find(topic, queue_id)
    stored = queue.max_offset if queue else 0
    if covered.covered_to > stored:
        raise Unfit(f"it covers {place} up to {covered.covered_to}, but the queue ends at {stored}")
    if before is not None:
        if covered.covered_from != before.covered_from or covered.covered_to < before.covered_to:
            raise Unfit(
                f"it covers {place} from {covered.covered_from} to {covered.covered_to}, but the "
                f"active one from {before.covered_from} to {before.covered_to}"
            )
    elif queue is not None:
        lowest = store.queues.min_offset(queue, store.log.min_offset)
        if covered.covered_from > lowest:
            raise Unfit(
                f"it covers {place} from {covered.covered_from}, but the queue begins at {lowest}"
            )
    if queue is None:
        return
    for offset, is_below in ((covered.covered_to - 1, True), (covered.covered_to, False)):
        if offset < 0:
            continue
        entries = store.queues.read(queue, offset, 1)
        # Offsets without a record may be on either side.
        if len(entries) == 0 or int(entries[0]["size"]) == FILLER_SIZE:
            continue
        if (int(entries[0]["offset"]) < log_end) is not is_below:
            raise Unfit(
                f"it covers {place} up to {covered.covered_to}, but message {offset} is at "
                f"{int(entries[0]['offset'])}, but it was made of the log up to {log_end}"
            )


def _check_unlisted(queue: ConsumeQueue, manifest: Manifest, store: StoreFacts) -> None:
    """Check that a queue that the manifest does not list has no records in the compacted range."""
    topic = manifest.topic(queue.topic)
    if topic is None or is_dropped_since(topic, store.marks):
        return
    first = first_listed(queue, 0, store.queues, store.log)
    if first is not None and first < manifest.log_end:
        raise Unfit(f"it lacks queue {queue.queue_id} of {queue.topic}")
