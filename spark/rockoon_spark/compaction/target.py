"""Compaction targets: stores that a compaction reads, and to which it adds a generation."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from rockoon_format.generation import Manifest
from rockoon_spark.compaction.copying import PartWriter
from rockoon_spark.compaction.exchange import Exchange
from rockoon_spark.compaction.plan import CompactionInput
from rockoon_spark.compaction.sources import FormerPart
from rockoon_spark.source.log_source import ContiguousPartition


class Incoming(Protocol):
    """Interface of a new generation that is being written to a store."""

    @property
    def writer(self) -> PartWriter: ...

    def publish(self, manifest: Manifest) -> None:
        """Publish the complete generation to the broker.

        Raises:
            CompactionError: the broker refused it, or another run has published one.
        """
        ...


class CompactionTarget(Protocol):
    """Interface of one broker's store that is compacted. Used only by the driver."""

    @property
    def name(self) -> str:
        """Name of the store for reports and error texts."""
        ...

    def inspect(
        self, exchange: Exchange, /, *, min_lag_ms: int, split_bytes: int
    ) -> CompactionInput:
        """Return the current state of the log and the generation.

        Args:
            exchange: runs tasks that read the log, if necessary.
            min_lag_ms: minimum age of the records to compact.
            split_bytes: bytes of log that one task reads.

        Raises:
            CompactionError: the store cannot be read, or is not ready for a compaction.
        """
        ...

    def partitions(self, start: int, stop: int, split_bytes: int) -> Sequence[ContiguousPartition]:
        """Divide a range of the log into partitions.

        Args:
            start, stop: physical offsets of record boundaries.
            split_bytes: maximum size of a partition.
        """
        ...

    def former_parts(self, manifest: Manifest) -> Sequence[FormerPart]:
        """Return the parts of the current generation."""
        ...

    def incoming(self, number: int, /) -> AbstractContextManager[Incoming]:
        """Return a context in which a new generation is written.

        An unpublished generation is removed at the end of the context.

        Raises:
            CompactionError: another run compacts this store.
        """
        ...
