"""Progress table: offsets by reader and queue, and traces of removed progress. Pure.

The rules of start positions apply to a reader without progress on a queue. Two traces of removed
progress matter to them: the incarnation of a deleted queue that the reader had read, and the owner
of a queue whose progress was removed by the undo of a reset. That owner reads until it is notified.

The methods apply changes without checks; the ledger decides them.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from rockoon_core.message_queue import MessageQueue
from rockoon_offset.progress.readers import group_of, in_order
from rockoon_offset.progress.records import Progress, ProgressPut, QueueDeleted, Record, Reverted

# Bound on the kept (reader, deleted queue) entries.
DELETED_QUEUES_MAX = 100_000


class ProgressTable:
    def __init__(self) -> None:
        self._progress: dict[str, dict[MessageQueue, Progress]] = {}
        # (reader, deleted queue) → incarnation, the oldest entry first.
        self._deleted: dict[tuple[str, MessageQueue], int] = {}
        # Progress removed by the undo of a reset; only its owner matters. A queue with current
        # progress has no entry.
        self._reverted: dict[str, dict[MessageQueue, Progress]] = {}

    # Queries.

    def find(self, reader: str, queue: MessageQueue) -> Progress | None:
        return self._progress.get(reader, {}).get(queue)

    def owning_progress(self, reader: str, queue: MessageQueue) -> Progress | None:
        """Return the progress that names a queue's owner, even if an undo removed it."""
        found = self.find(reader, queue)
        return self._reverted.get(reader, {}).get(queue) if found is None else found

    def all_owning_progress(self, reader: str) -> dict[MessageQueue, Progress]:
        """Return the progress that names the owner, as `owning_progress`, of each queue of a
        reader."""
        return {**self._reverted.get(reader, {}), **self.of(reader)}

    def deleted(self, reader: str, queue: MessageQueue) -> int | None:
        """Return the deleted queue's incarnation on which the reader had progress, else None."""
        return self._deleted.get((reader, queue))

    def of(self, reader: str) -> Mapping[MessageQueue, Progress]:
        return self._progress.get(reader, {})

    def readers(self) -> Iterable[str]:
        return self._progress.keys()

    def known_readers(self) -> set[str]:
        """Return the readers that have progress, or that had progress which was removed."""
        return {*self._progress, *self._reverted, *(reader for reader, _ in self._deleted)}

    def __iter__(self) -> Iterator[Progress]:
        """Yield all progress, in no order."""
        for queues in self._progress.values():
            yield from queues.values()

    def reverted(self, group: str = "") -> Iterator[Progress]:
        """Yield the progress that the undo of a reset has removed, of a group with its members; an
        empty group: of all groups."""
        for reader in sorted(self._reverted, key=in_order):
            if group in ("", group_of(reader)):
                yield from self._reverted[reader].values()

    # Changes.

    def put(self, progress: Progress) -> None:
        self._progress.setdefault(progress.group, {})[progress.queue] = progress
        remove_from(self._reverted, progress.group, progress.queue)
        self._deleted.pop((progress.group, progress.queue), None)

    def commit(
        self,
        reader: str,
        queue: MessageQueue,
        offset: int,
        committer: str,
        stored_at_ms: int,
        metadata: str,
    ) -> None:
        queues = self._progress[reader]
        queues[queue] = queues[queue]._replace(
            offset=offset,
            committer=committer,
            stored_at_ms=stored_at_ms,
            metadata=metadata,
            acknowledged_by="",
            acknowledged_at_ms=0,
        )

    def settle(
        self, reader: str, queue: MessageQueue, offset: int, receiver: str, stored_at_ms: int
    ) -> None:
        """Move a group's offset after a receiver's acknowledgement."""
        queues = self._progress[reader]
        queues[queue] = queues[queue]._replace(
            offset=offset,
            stored_at_ms=stored_at_ms,
            metadata="",
            acknowledged_by=receiver,
            acknowledged_at_ms=stored_at_ms,
        )

    def revert(self, progress: Progress) -> None:
        """Remove progress because a reset is undone; its owner stays known."""
        remove_from(self._progress, progress.group, progress.queue)
        self._reverted.setdefault(progress.group, {})[progress.queue] = progress

    def remove(self, reader: str, queue: MessageQueue) -> None:
        remove_from(self._progress, reader, queue)
        remove_from(self._reverted, reader, queue)

    def queue_deleted(self, reader: str, queue: MessageQueue, incarnation: int) -> None:
        self.remove(reader, queue)
        self._deleted[reader, queue] = incarnation
        while len(self._deleted) > DELETED_QUEUES_MAX:
            del self._deleted[next(iter(self._deleted))]

    def remove_readers(self, readers: Collection[str]) -> None:
        """Remove all progress of readers, and the stored facts about removed progress."""
        for reader in readers:
            self._progress.pop(reader, None)
            self._reverted.pop(reader, None)
        self._deleted = {key: at for key, at in self._deleted.items() if key[0] not in readers}

    def snapshot(self) -> Iterator[Record]:
        """Yield the records that restore the table, from a copy of the state made now."""
        progress = [queues.copy() for queues in self._progress.values()]
        reverted = [queues.copy() for queues in self._reverted.values()]
        deleted = self._deleted.copy()

        def records() -> Iterator[Record]:
            for queues in progress:
                for entry in queues.values():
                    yield ProgressPut(entry)
            for queues in reverted:
                for entry in queues.values():
                    yield Reverted(entry)
            for (reader, queue), incarnation in deleted.items():
                yield QueueDeleted(reader, queue, incarnation)

        return records()


def remove_from(
    table: dict[str, dict[MessageQueue, Progress]], reader: str, queue: MessageQueue
) -> None:
    queues = table.get(reader)
    if queues is not None:
        queues.pop(queue, None)
        if not queues:
            del table[reader]
