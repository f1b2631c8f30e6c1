"""Compaction targets: stores that a compaction reads and leaves a generation in."""

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
    """A generation that is being written."""

    @property
    def writer(self) -> PartWriter: ...

    def publish(self, manifest: Manifest) -> None:
        """Hand the whole to the broker.

        Raises:
            CompactionError: it is not taken, or somebody was faster.
        """
        ...


class CompactionTarget(Protocol):
    """One broker's store. Used by the driver alone."""

    @property
    def name(self) -> str:
        """Which, for people."""
        ...

    def look(self, exchange: Exchange, /, *, min_lag_ms: int, split_bytes: int) -> CompactionInput:
        """What there is to compact now.

        Args:
            exchange: runs tasks, if need be.
            min_lag_ms: records that were stored less than that ago are left alone.
            split_bytes: bytes of log that one task reads.

        Raises:
            CompactionError: there is a reason not to begin.
        """
        ...

    def partitions(self, start: int, stop: int, split_bytes: int) -> Sequence[ContiguousPartition]:
        """Cut a piece of the log.

        Args:
            start, stop: physical offsets; records start at both.
            split_bytes: of a partition, at most.
        """
        ...

    def former_parts(self, manifest: Manifest) -> Sequence[FormerPart]:
        """The parts of the generation in force."""
        ...

    def incoming(self, number: int, /) -> AbstractContextManager[Incoming]:
        """A generation to write. What is not published goes when the context ends.

        Raises:
            CompactionError: another run is at it.
        """
        ...
