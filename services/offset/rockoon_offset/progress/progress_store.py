"""Interface of the store of progress, with a journal of one copy or of several replicas."""

from pathlib import Path
from typing import NamedTuple, Protocol

from rockoon_node.store_directory import StoreCluster
from rockoon_offset.progress.ledger import Ledger
from rockoon_offset.progress.records import Record


class JournalCounts(NamedTuple):
    """Size of the journal, and counts since the start of the process."""

    bytes: int
    syncs: int
    # From the end of the writes to the end of each sync, with the wait for the thread.
    sync_seconds: float
    # Reason why changes are refused; empty: they are accepted.
    shortage: str


class ProgressStore(Protocol):
    """A ledger and its journal. Use it from one event loop."""

    @property
    def ledger(self) -> Ledger: ...

    @property
    def root(self) -> Path:
        """Directory of the store."""

    @property
    def cluster(self) -> StoreCluster: ...

    @property
    def is_stalled(self) -> bool:
        """True while queued changes cannot be written."""

    @property
    def changes(self) -> int:
        """Number of changes passed to `write` since the start. A leader counts a change once its
        journal has it."""

    def raise_level(self, level: int) -> None:
        """Set the feature level of the services that must be able to read the journal. A lower
        level than before has no effect.
        """

    def journal_counts(self) -> JournalCounts: ...

    def require_writable(self) -> None:
        """Raise an error if no change may be made now. Call it before each change of the ledger.

        Raises:
            Busy: too many records wait for the disk.
            StoreNotWritable: the disk has no room.
            StoreFailed: the disk failed.
            NotLeader, NotEnoughReplicas: of a journal with copies.
        """

    def write(self, records: list[Record]) -> None:
        """Queue the records of an applied change for the journal; `durable` waits for them."""

    async def durable(self) -> None:
        """Wait until all changes passed to `write` so far, by any caller, are durable.

        With copies, also wait until the leadership of this process is confirmed. Cancelling is
        safe: the records stay queued.

        Raises:
            StoreNotWritable: the disk has no room; the records are written when there is room.
            StoreFailed: the disk failed.
            NotLeader, NotEnoughReplicas: of a journal with copies.
        """

    async def wait_leadership_confirmed(self) -> None:
        """Wait until the leadership of this process is confirmed, for replies without a change.

        See rule 11 of docs/understand/replication.md.

        Raises:
            NotLeader: another process leads, or leadership cannot be confirmed.
        """
