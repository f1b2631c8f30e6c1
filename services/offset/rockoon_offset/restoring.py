"""Restore of a backup's progress into a new store of the offset service.

Invariants:
- No restored offset is beyond the end of its queue in the restored log. Otherwise the next messages
  would be skipped.
- If a topic was deleted and created again between the backups of progress and logs, its offsets are
  0: the restored log has other messages at the same offsets.
- Each reader gets a new epoch on each queue, and later acquisitions get new numbers. So commits and
  acknowledgements of clients of the former cluster do not count, unless the message is the same.
- Each queue of each reader has the reason RESTORED with an explanation, which `rockoon offsets why`
  prints.
"""

import asyncio
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rockoon_core.errors import StoreCorrupt
from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import StartReason
from rockoon_offset.journal import frames
from rockoon_offset.journal.store import JournalStore
from rockoon_offset.progress.readers import group_of, member_of
from rockoon_offset.progress.records import (
    Acquired,
    Counters,
    Extended,
    MembersChanged,
    Progress,
    ProgressPut,
    Record,
    ResetApplied,
    Reverted,
    Settled,
    WindowPut,
    decode,
)

# More than a service uses. So numbers computed from the time of the restore are above those of the
# former cluster, and of a cluster that was restored from the same backup before.
NUMBERS_PER_MS = 1 << 10
# If the clock of this machine is behind: more than the former service can have counted after the
# backup.
NUMBERS_SKIPPED = 1 << 40

# Broker → (topic, queue id) → offset after the last message of the restored log.
QueueEnds = Mapping[str, Mapping[tuple[str, int], int]]


class RestoredOffset(NamedTuple):
    """A reader's offset of a queue in a backup, and after the restore.

    Attributes:
        group, member: the reader; `member` is empty for a group's own progress.
        before: offset in the backup.
        offset: offset in the restored store.
        explanation: explanation of the offset, as it is stored.
    """

    group: str
    member: str
    queue: MessageQueue
    before: int
    offset: int
    explanation: str


def decoded(content: bytes, path: Path) -> list[Record]:
    """Decode the state of an offset service from a backup. Raises StoreCorrupt."""
    try:
        return [decode(record) for record in frames.unpack(content)]
    except (ValueError, TypeError, KeyError, struct.error) as failure:
        raise StoreCorrupt(path=path, reason=f"it is no state of progress: {failure}") from failure


def later(number: int, now_ms: int) -> int:
    """Return a number above those that other clusters use after `number`, the last one of a backup.

    Args:
        number: last used epoch or acquisition.
        now_ms: epoch milliseconds.
    """
    by_time = now_ms * NUMBERS_PER_MS
    return by_time if by_time > number else number + NUMBERS_SKIPPED


class RestoredState:
    """State of the offset service in a backup, limited to the restored logs.

    Args:
        records: state in the backup.
        ends: ends of the queues of each restored log; brokers without a log are missing.
        created_again: topics that were deleted and created again between the backups of the
            progress and of the logs.
        source: sentence about the backup, the beginning of each explanation.
        now_ms: epoch milliseconds.
    """

    def __init__(
        self,
        records: Sequence[Record],
        ends: QueueEnds,
        created_again: Collection[str],
        source: str,
        now_ms: int,
    ) -> None:
        self._records = records
        # As if the queues of these topics were empty.
        self._ends = {
            broker: {each: end for each, end in found.items() if each[0] not in created_again}
            for broker, found in ends.items()
        }
        self._created_again = created_again
        self._source = source
        self._now_ms = now_ms
        counters = [each for each in records if isinstance(each, Counters)]
        before = counters[-1] if counters else Counters(epoch=0, starts=0, route_revision=0)
        # The id of the new etcd is not known; equal revisions show that it has the same routes.
        self._counters = before._replace(
            epoch=later(before.epoch, now_ms),
            acquisition=later(before.acquisition, now_ms),
            etcd_cluster_id=0,
        )
        self._moved = {
            (each.progress.group, each.progress.queue)
            for each in records
            if isinstance(each, ProgressPut) and each.progress.offset > self._end(each.progress)
        }
        # Messages that were settled above the end of the log will be other messages.
        self._moved |= {
            (each.group, each.queue)
            for each in records
            if isinstance(each, WindowPut) and each.acquired_to > self._end(each)
        }
        self.offsets: list[RestoredOffset] = []

    def _end(self, record: Progress | WindowPut) -> int:
        queues = self._ends.get(record.queue.broker)
        if queues is None:
            return max(record.offset if isinstance(record, Progress) else record.acquired_to, 0)
        return queues.get((record.queue.topic, record.queue.queue_id), 0)

    def records(self) -> Iterator[Record]:
        for each in self._records:
            match each:
                case ProgressPut(progress):
                    yield ProgressPut(self._restored(progress))
                case WindowPut() | Acquired() | Settled() | Extended():
                    if (each.group, each.queue) not in self._moved:
                        yield each
                case ResetApplied():
                    if not self._is_undone_beyond_end(each):
                        yield each
                case Counters() | MembersChanged() | Reverted():
                    # Owners and members of the former cluster join again. Without their entries,
                    # new members need not wait for their leases.
                    pass
                case _:
                    yield each
        yield self._counters

    def _next_epoch(self) -> int:
        self._counters = self._counters._replace(epoch=self._counters.epoch + 1)
        return self._counters.epoch

    def _restored(self, progress: Progress) -> Progress:
        end = self._end(progress)
        offset = min(progress.offset, end)
        text = self._source
        if progress.queue.broker not in self._ends:
            text += f"; the log of {progress.queue.broker} was not restored with it"
        elif progress.queue.topic in self._created_again:
            text += (
                "; the progress is that of another topic of this name, since the topic was deleted "
                "and created again between the backups: the group reads it from its first message"
            )
        elif offset < progress.offset:
            text += (
                f"; the group had read up to {progress.offset}, but the restored queue ends at "
                f"{end}: it continues there, and {progress.offset - end} messages are lost"
            )
        elif (progress.group, progress.queue) in self._moved:
            text += (
                "; messages that were acknowledged ahead of the offset are delivered again, "
                f"because some of them are lost: the restored queue ends at {end}"
            )
        group, member = group_of(progress.group), member_of(progress.group)
        self.offsets.append(
            RestoredOffset(group, member, progress.queue, progress.offset, offset, text)
        )
        return progress._replace(
            offset=offset,
            epoch=self._next_epoch(),
            owner="",
            start_offset=offset,
            start_reason=StartReason.RESTORED,
            start_explanation=text,
            started_at_ms=self._now_ms,
        )

    def _is_undone_beyond_end(self, reset: ResetApplied) -> bool:
        """True if an undo of the reset would set an offset beyond the end of its queue."""
        return any(
            (step.from_offset or 0)
            > self._ends[step.queue.broker].get((step.queue.topic, step.queue.queue_id), 0)
            for step in reset.steps
            if step.queue.broker in self._ends
        )


def restore(
    directory: Path,
    store_id: str,
    content: bytes,
    ends: QueueEnds,
    created_again: Collection[str],
    source: str,
    now_ms: int,
) -> list[RestoredOffset]:
    """Write a store of the offset service from a backup; return all offsets. Runs an event loop.

    Args:
        directory: the store's; it does not exist yet.
        store_id: id of the store.
        content: state in the backup, as ReadState returned it.
        ends, created_again, source, now_ms: see `RestoredState`.

    Raises:
        StoreCorrupt: the state is damaged, or a newer version wrote it.
        StoreFailed, OSError: the disk.
    """
    state = RestoredState(decoded(content, directory), ends, created_again, source, now_ms)
    directory.mkdir(mode=0o700, parents=True)
    (directory / "store_id").write_text(store_id + "\n")
    asyncio.run(_write(directory, list(state.records())))
    return state.offsets


async def _write(directory: Path, records: list[Record]) -> None:
    # The call that waits below raises a failure of the disk.
    store = JournalStore(directory, lambda _: None)
    try:
        store.write(store.ledger.apply_all(records))
        await store.durable()
    finally:
        store.close()
