"""The logs that a job goes on with from run to run, one for each broker, whatever place has them.

A run notes how far it came in each log; the next one begins there. That holds only if it is the
same log, so a run notes the last record that it read as well.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from rockoon.errors import LogTrimmed
from rockoon_format.record import MAGIC_V1, MAGIC_V2
from rockoon_proto.v1.broker_pb2 import ReadLogRequest
from rockoon_spark.broker_calls import LogClient
from rockoon_spark.export.target import LastRecord
from rockoon_spark.files import LogFile, list_log, read_range
from rockoon_spark.records.selection import EVERYTHING
from rockoon_spark.source.file_partition import SPLIT_BYTES, Split
from rockoon_spark.source.live_cluster import PLAN_RETRY_SECONDS, BrokerPartition, LiveCluster
from rockoon_spark.source.log_source import LogPartition
from rockoon_spark.source.store_directory import FilePartition, StoreDirectory

_HEAD_BYTES = 8
_WHOLE_LOG = 1 << 62


class BrokerLog(Protocol):
    """One broker's log as it is when a job is planned. Can be pickled."""

    @property
    def broker(self) -> str: ...

    @property
    def start(self) -> int:
        """Physical offset of the oldest byte."""
        ...

    @property
    def end(self) -> int:
        """Behind the last byte that the job looks at, physical offset."""
        ...

    @property
    def bound(self) -> int:
        """No byte lies behind this physical offset, looked at or not."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether records may end before `end`: the job finds out where."""
        ...

    def partitions(self, start: int, stop: int, *, at_record: bool) -> Iterator[LogPartition]:
        """Cut what lies between two physical offsets.

        Args:
            at_record: a record starts at `start`, or nothing was written there; without, the first
                record behind it is looked for.
        """
        ...

    def oldest(self) -> int:
        """Physical offset of the oldest byte at this moment.

        Raises:
            RockoonError, StoreError: that cannot be told.
        """
        ...

    def knows(self, last: LastRecord) -> bool | None:
        """Whether a record stands where it did; None where nobody can tell any more."""
        ...


@dataclass(frozen=True, slots=True)
class DirectoryLog:
    """The log of a store directory."""

    directory: StoreDirectory
    files: Sequence[LogFile]
    """Those that have records."""
    is_open: bool
    """Whether the last one is looked at."""

    @property
    def broker(self) -> str:
        return self.directory.broker

    @property
    def start(self) -> int:
        return self.files[0].start

    @property
    def end(self) -> int:
        return self.bound if self.is_open else self.files[-1].start

    @property
    def bound(self) -> int:
        return self.files[-1].start + self.files[-1].bytes

    def partitions(self, start: int, stop: int, *, at_record: bool) -> Iterator[LogPartition]:
        """See `BrokerLog`."""
        for file in self.files:
            first, behind = max(start - file.start, 0), min(stop - file.start, file.bytes)
            for at in range(first, behind, SPLIT_BYTES):
                split = Split(file, at, min(at + SPLIT_BYTES, behind))
                is_proven = at_record and file.start + at == start
                yield FilePartition(self.directory, split, at_record=is_proven)

    def oldest(self) -> int:
        """See `BrokerLog`."""
        files = list_log(self.directory.path)
        return files[0].start if files else self.end

    def knows(self, last: LastRecord) -> bool | None:
        """See `BrokerLog`."""
        for file in self.files:
            position = last.offset - file.start
            if 0 <= position < file.bytes:
                record = read_range(file, position, position + last.bytes, 0)
                return zlib.crc32(record.tobytes()) == last.crc32
        return None


@dataclass(frozen=True, slots=True)
class LiveLog:
    """The log of a broker that runs."""

    whole: BrokerPartition
    is_open: bool = False

    @property
    def broker(self) -> str:
        return self.whole.broker

    @property
    def start(self) -> int:
        return self.whole.start

    @property
    def end(self) -> int:
        return self.whole.stop

    @property
    def bound(self) -> int:
        return self.end

    def partitions(self, start: int, stop: int, *, at_record: bool) -> Iterator[LogPartition]:
        """See `BrokerLog`."""
        # It comes in small replies anyway.
        yield replace(self.whole, start=start, stop=stop, at_record=at_record)

    def oldest(self) -> int:
        """See `BrokerLog`."""
        with self._client() as client:
            return int(client.read(ReadLogRequest()).log_min_offset)

    def knows(self, last: LastRecord) -> bool | None:
        """See `BrokerLog`.

        Raises:
            RockoonError: the broker does not answer.
        """
        request = ReadLogRequest(
            physical_offset=last.offset,
            at_record=True,
            end_offset=last.offset + 1,
            max_bytes=1,
        )
        with self._client() as client:
            try:
                reply = client.read(request)
            except LogTrimmed:
                return None
        if reply.frames:
            return zlib.crc32(reply.frames) == last.crc32
        # It went with its topic, unless something else is there.
        return False if reply.skipped_bytes else None

    def _client(self) -> LogClient:
        return LogClient(self.broker, self.whole.address, PLAN_RETRY_SECONDS)


def directory_log(directory: StoreDirectory, *, sealed_only: bool) -> DirectoryLog | None:
    """The log of a store directory, None if it has none yet.

    Args:
        sealed_only: leave out the last file that has messages, which a broker may be writing.

    Raises:
        StoreError: this is no store.
    """
    files = list_log(directory.path)
    while files and not _has_records(files[-1]):
        files.pop()
    return DirectoryLog(directory, tuple(files), is_open=not sealed_only) if files else None


def _has_records(file: LogFile) -> bool:
    """Whether anything was written into a file: brokers make the next one ahead."""
    head = read_range(file, 0, min(_HEAD_BYTES, file.bytes), 0).tobytes()
    return int.from_bytes(head[4:], signed=True) in (MAGIC_V1, MAGIC_V2)


def live_logs(cluster: LiveCluster, broker: str | None = None) -> list[LiveLog]:
    """The log of each broker of a cluster that has messages, or of one of them.

    Raises:
        BrokerAway: a broker does not answer.
        RockoonError: no nameserver answers.
    """
    found = []
    wanted = EVERYTHING.among("broker", frozenset({broker})) if broker else EVERYTHING
    for partition in cluster.partitions(wanted, _WHOLE_LOG):
        assert isinstance(partition, BrokerPartition)
        with LogClient(partition.broker, partition.address, PLAN_RETRY_SECONDS) as client:
            ends = client.read(ReadLogRequest())
        # A message that a crash can still take back is not exported: its place may be another's.
        end = min(ends.visible_end, ends.durable_end)
        if end > partition.start:
            found.append(LiveLog(replace(partition, stop=end)))
    return found
