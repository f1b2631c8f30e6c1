"""Store of progress, as those know it who change it: of one copy, or led by one of several."""

from pathlib import Path
from typing import Protocol

from rockoon_node.store_cluster import StoreCluster
from rockoon_offset.journal.journal import JournalCounts
from rockoon_offset.progress.ledger import Ledger
from rockoon_offset.progress.records import Record


class ProgressStore(Protocol):
    """A ledger, and the journal that keeps it. Used from one event loop."""

    @property
    def ledger(self) -> Ledger: ...

    @property
    def root(self) -> Path:
        """The directory."""
        ...

    @property
    def cluster(self) -> StoreCluster: ...

    @property
    def is_held(self) -> bool:
        """Whether changes wait that cannot be written now."""
        ...

    @property
    def changes(self) -> int:
        """Grows with every change written since the start."""
        ...

    def journal_counts(self) -> JournalCounts: ...

    def admit(self) -> None:
        """To be called before the ledger is changed.

        Raises:
            Busy, StoreNotWritable, StoreFailed: as the names say.
            NotLeader, NotEnoughReplicas: of a journal with copies.
        """
        ...

    def write(self, records: list[Record]) -> None:
        """Queue the records of a change that the ledger has made; `durable` waits for them."""
        ...

    async def durable(self) -> None:
        """Wait until nothing can take back what was written so far, by anybody, and this is known
        to be still the one ledger that decides. Cancelling it is safe: the records stay queued.

        Raises:
            StoreNotWritable, StoreFailed: as the names say.
            NotLeader, NotEnoughReplicas: of a journal with copies.
        """
        ...

    async def still_decides(self) -> None:
        """Wait until this is known to be, after the call, the one ledger that decides: for answers
        that are none of a change. See rule 11 of docs/understand/replication.md.

        Raises:
            NotLeader: it is not, or it is not known.
        """
        ...
