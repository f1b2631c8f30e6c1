"""Log interface of replication: positions, epochs, whole records; implemented by CommitLog and
journal.

Positions are opaque integers that grow by the bytes of the records.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from rockoon_core.replication_rules import Boundary


class LogFull(Exception):
    """The disk is full or refuses writes: nothing was written, and a later try may succeed."""


class WriteCheck(NamedTuple):
    """Result of a check whether a log can be written. Empty texts: it can.

    Attributes:
        failure: why the disk refuses writes.
        refusal: why clients' records are refused although the disk would accept them: it is fuller
            than the settings allow. The log's own records are still written.
    """

    failure: str = ""
    refusal: str = ""

    @property
    def reason(self) -> str:
        """Reason why clients' records cannot be appended; empty if they can."""
        return self.failure or self.refusal


class Generation(NamedTuple):
    """Generation of a log: the result of a compaction, with the records of compacted topics that
    the log has deleted.

    Attributes:
        identity: number of the generation in use, equal on all replicas with the same manifest; 0:
            no generation is in use.
        end: position in the log up to which the compaction has read its records.
        needed_end: minimum `end` of a generation that this log needs, because the log began after
            records that only a generation has; 0: it needs none.
    """

    identity: int = 0
    end: int = 0
    needed_end: int = 0

    @property
    def is_lacking(self) -> bool:
        """True if records are missing: neither the log nor a generation has them."""
        return self.end < self.needed_end


NO_GENERATION = Generation()


class LogView(Protocol):
    """Read access to a log. Calls do not block; only `tail_crc` and `blank_at` read the disk."""

    @property
    def end(self) -> int:
        """End of the last whole record that was written."""

    @property
    def durable_end(self) -> int:
        """End of the last record that survives a power cut; at most `end`."""

    @property
    def min_offset(self) -> int:
        """Position of the oldest record; `end` in a log without records."""

    @property
    def committed_end(self) -> int:
        """Position up to which the log is committed; after a start, as far as that is known to be
        durable.
        """

    @property
    def dropped(self) -> Mapping[str, int]:
        """Dropped topics, by name, with the position below which their records are to be ignored.
        Other copies need this to use the records after it."""

    @property
    def generation(self) -> Generation:
        """Generation that this log uses."""

    def boundaries(self) -> Sequence[Boundary]:
        """Epochs in order, derived from the log's own records; the last one ends at `end`.

        Records before the first one that opens an epoch are of epoch 0, which begins at 0. If the
        oldest records were deleted, `first` is still the epoch's original position. The number of
        known epochs is limited: the oldest may be missing.
        """

    def tail_crc(self, end: int, size: int) -> int:
        """CRC-32 of the bytes in `[end - size, end)`, which are not below `min_offset`."""

    def damaged_at(self, offset: int, data: bytes) -> int | None:
        """Position of the first damaged record, by checksums; None if all are intact.

        Args:
            offset: offset of the first byte; a record begins there.
            data: returned by `read`, here or at another copy.
        """

    def record_before(self, position: int) -> int:
        """Return a position, at most the given one, where a record probably begins; found
        quickly.
        """

    def file_begin(self, position: int) -> int:
        """Return a position, at most the given one, where a record certainly begins."""

    def blank_at(self, position: int) -> int | None:
        """Start of the blank that contains a byte: it ends a file into which the next record did
        not fit. None: the byte is part of a record, or the log has no blanks."""


class ReplicatedLog(LogView, Protocol):
    """A log that replication writes. Only one task calls it; only `sync` and `fetch` wait."""

    def read(self, offset: int, bytes_max: int) -> bytes:
        """Return whole records from a position on, unmodified; empty at the end of the log.

        The first record is complete even if it is longer than `bytes_max`.

        Raises:
            ValueError: no record begins at this position, or it is below `min_offset`.
        """

    async def fetch(self, offset: int, bytes_max: int) -> bytes:
        """Like `read`, in a thread if the disk must be read: the event loop is not blocked."""

    def write(self, offset: int, data: bytes) -> None:
        """Append records received from a leader; durable only after `sync`.

        Raises:
            ValueError: they do not begin at `end`, or are not whole records. Nothing was written.
            LogFull: the disk is full or refuses writes.
        """

    async def sync(self) -> None:
        """Return once all records written before the call are durable."""

    def check_writes(self, *, probe: bool = False) -> WriteCheck:
        """Report whether the log can be written.

        A failure ends when a write succeeds; until then the log retries a write itself.

        Args:
            probe: write something first, even if no write was refused.
        """

    async def repair(self, offset: int, data: bytes) -> None:
        """Replace damaged bytes below `end` by those of another copy; durable on return.

        The bytes are replaced before the first wait.

        Raises:
            ValueError: the log does not have this range any more.
            OSError: the disk.
        """

    def truncate(self, offset: int) -> None:
        """Cut the log at `offset`, durably; after a crash the end is the old or the new one.

        Cut records are kept in other files. A log without records also accepts a higher position,
        which then is its `min_offset`, `durable_end` and `committed_end` too.

        Raises:
            ValueError: no record ends there, or it is below `min_offset` or `committed_end`.
        """

    def drop(self, dropped: Mapping[str, int]) -> None:
        """Record the leader's dropped topics, durably; only positions beyond `end` are new."""

    def need_generation(self, end: int) -> None:
        """Record durably that this empty log needs a generation made up to `end` or further,
        because the log will begin after records that only a generation has; 0: no generation is
        needed.
        """

    def commit(self, offset: int) -> None:
        """Mark all records before a position as committed: readers may see them, and derived state
        includes them. The position never decreases, and may exceed `durable_end`, but not `end`.
        """

    def open_epoch(self, epoch: int) -> None:
        """Append the record that opens an epoch, which lists the boundaries before it.

        The log also writes one at the start of each of its files, so that deleting the oldest files
        does not lose the boundaries of epochs.

        Raises:
            ValueError: the log has a record of this epoch or of a later one.
            LogFull: the disk refuses the record. Nothing was written.
        """
