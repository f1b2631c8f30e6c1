"""Progress table: offsets by reader and queue, and what is remembered where there is none. Pure.

Without progress on a queue a reader starts there as the rules say. Two things are remembered then:
that it had read a queue of that name whose topic is gone, and who holds a queue whose progress was
taken back by the undoing of a reset: that member reads until it hears of it.

Its methods make changes that were checked; the ledger decides them.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from rockoon_core.message_queue import MessageQueue
from rockoon_offset.progress.readers import group_of, in_order
from rockoon_offset.progress.records import Progress, Put, QueueDeleted, Record, Reverted

# Queues of deleted topics of which is remembered that a group had read them.
GONE_QUEUES_MAX = 100_000


class ProgressTable:
    """Of all readers."""

    def __init__(self) -> None:
        self._progress: dict[str, dict[MessageQueue, Progress]] = {}
        # Incarnations; insertion order is age.
        self._gone: dict[tuple[str, MessageQueue], int] = {}
        # What progress was; only who holds the queue counts of it. None of it where there is
        # progress.
        self._reverted: dict[str, dict[MessageQueue, Progress]] = {}

    # Looking.

    def find(self, reader: str, queue: MessageQueue) -> Progress | None:
        return self._progress.get(reader, {}).get(queue)

    def holder(self, reader: str, queue: MessageQueue) -> Progress | None:
        """Progress, or what it was before it was taken back: its owner is who holds the queue."""
        found = self.find(reader, queue)
        return self._reverted.get(reader, {}).get(queue) if found is None else found

    def holders(self, reader: str) -> dict[MessageQueue, Progress]:
        """As `holder`, of all queues."""
        return {**self._reverted.get(reader, {}), **self.of(reader)}

    def gone(self, reader: str, queue: MessageQueue) -> int | None:
        """Incarnation of a queue of that name that it had read and that was deleted."""
        return self._gone.get((reader, queue))

    def of(self, reader: str) -> Mapping[MessageQueue, Progress]:
        return self._progress.get(reader, {})

    def readers(self) -> Iterable[str]:
        """Those with progress."""
        return self._progress.keys()

    def remembered(self) -> set[str]:
        """Readers of which anything is known."""
        return {*self._progress, *self._reverted, *(reader for reader, _ in self._gone)}

    def __iter__(self) -> Iterator[Progress]:
        """All progress, in no order."""
        for queues in self._progress.values():
            yield from queues.values()

    def reverted(self, group: str = "") -> Iterator[Progress]:
        """What progress was that was taken back, of a group with its members or of all."""
        for reader in sorted(self._reverted, key=in_order):
            if group in ("", group_of(reader)):
                yield from self._reverted[reader].values()

    # Changing.

    def put(self, progress: Progress) -> None:
        self._progress.setdefault(progress.group, {})[progress.queue] = progress
        remove_from(self._reverted, progress.group, progress.queue)
        self._gone.pop((progress.group, progress.queue), None)

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
        """A receiver has acknowledged messages; everything below an offset is settled."""
        queues = self._progress[reader]
        queues[queue] = queues[queue]._replace(
            offset=offset,
            stored_at_ms=stored_at_ms,
            metadata="",
            acknowledged_by=receiver,
            acknowledged_at_ms=stored_at_ms,
        )

    def vacate(self, progress: Progress) -> None:
        remove_from(self._progress, progress.group, progress.queue)
        self._reverted.setdefault(progress.group, {})[progress.queue] = progress

    def remove(self, reader: str, queue: MessageQueue) -> None:
        remove_from(self._progress, reader, queue)
        remove_from(self._reverted, reader, queue)

    def queue_gone(self, reader: str, queue: MessageQueue, incarnation: int) -> None:
        self.remove(reader, queue)
        self._gone[reader, queue] = incarnation
        while len(self._gone) > GONE_QUEUES_MAX:
            del self._gone[next(iter(self._gone))]

    def forget(self, readers: Collection[str]) -> None:
        """Drop all that is known of some readers."""
        for reader in readers:
            self._progress.pop(reader, None)
            self._reverted.pop(reader, None)
        self._gone = {key: at for key, at in self._gone.items() if key[0] not in readers}

    def snapshot(self) -> Iterator[Record]:
        """Records that make this; the copy is taken now, gone through whenever."""
        progress = [queues.copy() for queues in self._progress.values()]
        reverted = [queues.copy() for queues in self._reverted.values()]
        gone = self._gone.copy()

        def records() -> Iterator[Record]:
            for queues in progress:
                for entry in queues.values():
                    yield Put(entry)
            for queues in reverted:
                for entry in queues.values():
                    yield Reverted(entry)
            for (reader, queue), incarnation in gone.items():
                yield QueueDeleted(reader, queue, incarnation)

        return records()


def remove_from(
    places: dict[str, dict[MessageQueue, Progress]], reader: str, queue: MessageQueue
) -> None:
    queues = places.get(reader)
    if queues is not None:
        queues.pop(queue, None)
        if not queues:
            del places[reader]
