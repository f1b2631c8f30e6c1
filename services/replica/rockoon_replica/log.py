"""Log as replication knows it: positions, epochs, whole records. A CommitLog or a journal is one.

Positions are opaque integers that grow by the bytes of the records: streams count them as such.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from rockoon_core.replication_rules import Boundary


class LogFull(Exception):
    """The disk has no room, or refuses: nothing was written, and a later try may succeed."""


class WriteCheck(NamedTuple):
    """Whether a log can be written at present. Empty texts: it can.

    Attributes:
        failure: why the disk refuses writes.
        refusal: why clients' records are refused, though the disk would accept them: it is fuller
            than the settings allow. The log's own records are still written.
    """

    failure: str = ""
    refusal: str = ""

    @property
    def reason(self) -> str:
        """Why clients' records cannot be appended; empty while they can."""
        return self.failure or self.refusal


class Generation(NamedTuple):
    """What lies beside a log of records that it has deleted: of compacted topics, what is left.

    Attributes:
        identity: of the one in force, the same wherever its manifest is; 0: there is none.
        end: it was made of the log up to here.
        needed_end: up to where one has to be made for a log that began behind records it never had.
    """

    identity: int = 0
    end: int = 0
    needed_end: int = 0

    @property
    def is_lacking(self) -> bool:
        """Whether records are neither here nor in the log that should be in one of them."""
        return self.end < self.needed_end


NO_GENERATION = Generation()


class LogView(Protocol):
    """What can be asked of a log. No answer waits; all but `tail_crc` and `blank_at` are known in
    memory."""

    @property
    def end(self) -> int:
        """Behind the last whole record that was written."""
        ...

    @property
    def durable_end(self) -> int:
        """Behind the last record that a power cut leaves; at most `end`."""
        ...

    @property
    def min_offset(self) -> int:
        """The oldest record's position; `end` in a log without records."""
        ...

    @property
    def committed_end(self) -> int:
        """How far `commit` was told; after a start as much of it as is known to be durable."""
        ...

    @property
    def dropped(self) -> Mapping[str, int]:
        """What was left out of the log beside it, by name, with the position below which its
        records are as if they had never been. Other copies need it to take what lies behind."""
        ...

    @property
    def generation(self) -> Generation:
        """What lies beside the log of records that it has deleted."""
        ...

    def boundaries(self) -> Sequence[Boundary]:
        """Epochs in their order, worked out of the log's own records; the last one ends at `end`.

        Records before the first one that opens an epoch are of epoch 0, which begins at 0. Of a log
        whose oldest records are gone, `first` is still where the epoch began. How many epochs are
        known is bounded: the oldest may be missing.
        """
        ...

    def tail_crc(self, end: int, size: int) -> int:
        """CRC-32 of what lies in `[end - size, end)`, none of it below `min_offset`."""
        ...

    def damaged_at(self, offset: int, data: bytes) -> int | None:
        """Position of the first damaged record, by checksums; None if all are intact.

        Args:
            offset: of the first byte; a record begins there.
            data: what `read` gave, here or of another copy.
        """
        ...

    def record_before(self, position: int) -> int:
        """A position, at most the given one, at which a record seems to begin; quickly found."""
        ...

    def file_begin(self, position: int) -> int:
        """A position, at most the given one, at which a record surely begins."""
        ...

    def blank_at(self, position: int) -> int | None:
        """Where the blank begins that a byte belongs to: it ends a file into which the next record
        did not fit. None: the byte is of a record, or the log has no blanks."""
        ...


class ReplicatedLog(LogView, Protocol):
    """A log that replication writes. One task calls; only `sync` and `fetch` wait."""

    def read(self, offset: int, bytes_max: int) -> bytes:
        """Whole records from a position on, as they lie in the log; empty at its end.

        The first record is given whole, also where it is longer than `bytes_max`.

        Raises:
            ValueError: nothing begins at this position, or it is below `min_offset`.
        """
        ...

    async def fetch(self, offset: int, bytes_max: int) -> bytes:
        """As `read`; while the disk is waited for, the loop does other work."""
        ...

    def write(self, offset: int, data: bytes) -> None:
        """Append what a leader has sent; durable only after `sync`.

        Raises:
            ValueError: it does not begin at `end`, or is not whole records. Nothing was written.
            LogFull: the disk.
        """
        ...

    async def sync(self) -> None:
        """Return when all that was written before the call is durable."""
        ...

    def check_writes(self, *, probe: bool = False) -> WriteCheck:
        """Report whether the log can be written.

        A failure ends when a write succeeds; until then the log retries a write itself.

        Args:
            probe: write something first, also if no write was refused.
        """
        ...

    async def repair(self, offset: int, data: bytes) -> None:
        """Replace damaged bytes below `end` by those of another copy; durable on return.

        The bytes are replaced before the first wait.

        Raises:
            ValueError: the log does not have this range any more.
            OSError: the disk.
        """
        ...

    def truncate(self, offset: int) -> None:
        """Make `offset` the end, durably; a crash within leaves the old end or the new one.

        What is cut is kept aside. A log without records takes a higher position too: it begins
        there, and its `min_offset`, `durable_end` and `committed_end` are that too.

        Raises:
            ValueError: no record ends there, or it is below `min_offset` or `committed_end`.
        """
        ...

    def drop(self, dropped: Mapping[str, int]) -> None:
        """Leave out, durably, what the leader does; only positions beyond `end` are new."""
        ...

    def need_generation(self, end: int) -> None:
        """Note durably, of a log without records, that it is about to begin behind some that only a
        generation has, made up to `end` or further; 0: it is not."""
        ...

    def commit(self, offset: int) -> None:
        """Say that all before a position is committed: readers may see it, what is derived from the
        log is made of it. It never goes back, and may be ahead of `durable_end`, not of `end`.
        """
        ...

    def open_epoch(self, epoch: int) -> None:
        """Append the record that opens an epoch, which names the boundaries before it.

        The log writes such a record at the beginning of each of its files too, so that deleting the
        oldest ones never takes the last word on where epochs began.

        Raises:
            ValueError: the log has a record of this epoch or of a later one.
            LogFull: the disk refuses the record. Nothing was written.
        """
        ...
