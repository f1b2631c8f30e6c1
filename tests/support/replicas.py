"""Owners of stores with copies, for tests."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rockoon_broker.store.appender import Appended
from rockoon_broker.store.settings import Flush
from rockoon_core.disk import Disk
from rockoon_format.log_marks import TopicChange
from support.store_directory import Owner, healthy, settings
from support.waiting import DEADLINE_SECONDS


class Replica(Owner):
    """Owner of a store that has copies elsewhere."""

    def __init__(
        self,
        root: Path,
        disk: Disk | None = None,
        *,
        on_loss: Callable[[str], object] = healthy,
        **changes: Any,
    ) -> None:
        configured = settings(root, **{"flush": Flush.SYNC, **changes})
        super().__init__(configured, disk, on_loss=on_loss, by_quorum=True)
        self.disk = disk

    def sync(self) -> None:
        """Wait until all written bytes are durable in this copy."""
        while self.store.durable_end < self.store.appended_end:
            self.synced.get(timeout=DEADLINE_SECONDS)

    def open_epoch(self, epoch: int) -> int:
        """Begin an epoch; return its first physical offset."""
        return self.store.open_epoch(epoch, "a", self.clock.time_ms).first_physical_offset

    def begin_anew(self, *topics: str, incarnation: int = 1) -> Appended:
        """Append a record after which topics begin again."""
        known = dict.fromkeys(topics, incarnation)
        change = TopicChange(incarnation, 1, known, topics)
        return self.store.change_topics(change, self.clock.time_ms)

    def copy_from(self, leader: "Replica", bytes_max: int = 1000, end: int | None = None) -> None:
        """Copy the log of another replica after the end of this one."""
        while data := leader.store.read_raw(self.store.appended_end, bytes_max):
            if end is not None and self.store.appended_end >= end:
                break
            self.store.write_raw(self.store.appended_end, data)

    def log_bytes(self, end: int | None = None) -> bytes:
        """Return the CommitLog up to a physical offset."""
        store = self.store
        at, pieces = store.log_min_offset, []
        end = store.appended_end if end is None else end
        while at < end:
            data = store.read_raw(at, 1 << 20)
            pieces.append(data)
            at += len(data)
        return b"".join(pieces)[: end - store.log_min_offset]


@contextmanager
def opened(root: Path, disk: Disk | None = None, **changes: Any) -> Iterator[Replica]:
    """Open a replica, and close it at the end of the block."""
    replica = Replica(root, disk, **changes)
    try:
        yield replica
    finally:
        replica.store.close()
