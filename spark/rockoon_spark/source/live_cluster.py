"""The logs of a cluster that runs, read from its brokers.

A read is of one moment: its plan names each broker's log as readers saw it then, from its beginning
to its end. Every message whose sender had its acknowledgement before that is in it.
"""

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rockoon.errors import LogTrimmed, RockoonError
from rockoon_format.generation import Manifest
from rockoon_proto.v1.broker_pb2 import ReadLogReply, ReadLogRequest
from rockoon_spark.broker_addresses import absent_topics, broker_addresses
from rockoon_spark.broker_calls import LogClient
from rockoon_spark.generations.broker_generation import BrokerGeneration, generation_in_force
from rockoon_spark.generations.coverage import Coverage
from rockoon_spark.generations.parts import (
    GenerationPartition,
    GenerationReplaced,
    generation_partitions,
)
from rockoon_spark.records.columns import LogRecords
from rockoon_spark.records.selection import Range, Selection
from rockoon_spark.source.log_source import FORGED_FAULT, DamagedPlace, in_batches, report_loss

log = logging.getLogger(__name__)

# How long a broker that does not answer is asked again: at most, before a read is planned.
PLAN_RETRY_SECONDS = 2.0
# And while its log is read: a broker that is restarted comes back within this.
READ_RETRY_SECONDS = 20.0
_NEVER_MS = 1 << 62
# Looking again is for a generation that another replaces while a read is planned.
_LOOKS_MAX = 5


class BrokerAway(Exception):
    """A broker's log cannot be read."""


@dataclass(frozen=True, slots=True)
class LiveCluster:
    """A cluster.

    Args:
        endpoint: its nameservers, as `rockoon.connect` takes them.
        skips_brokers_away: whether to read the others when a broker does not answer.
        fails_on_data_loss: whether to fail when messages are deleted before they are read.
        compacted: whether compacted topics are read as a consumer gets them; see `Coverage`.
    """

    endpoint: str
    skips_brokers_away: bool = False
    fails_on_data_loss: bool = True
    compacted: bool = False

    def partitions(
        self, selection: Selection, split_bytes: int
    ) -> Sequence["BrokerPartition | GenerationPartition"]:
        """See `LogSource`.

        Raises:
            BrokerAway: a broker that has messages does not answer, or one that is selected is not
                of this cluster.
            RockoonError: no nameserver answers.
            GenerationReplaced: a broker takes one generation after the other into force.
        """
        found: list[BrokerPartition | GenerationPartition] = []
        addresses, failures = broker_addresses(self.endpoint)
        unknown = selection.one_of.get("broker", frozenset()) - addresses.keys() - failures.keys()
        if unknown:
            raise BrokerAway(f"the cluster at {self.endpoint} has no broker {min(unknown)!r}")
        for broker, address in addresses.items():
            if not selection.wants_broker(broker):
                continue
            try:
                found += self.partitions_of(broker, address, selection, split_bytes)
            except RockoonError as error:
                failures[broker] = error
        for broker, failure in failures.items():
            if selection.wants_broker(broker):
                self._report_away(broker, failure)
        return found

    def absent(self, topics: Collection[str]) -> Sequence[str]:
        """See `LogSource`.

        Raises:
            RockoonError: no nameserver answers.
        """
        return absent_topics(self.endpoint, topics) if topics else ()

    def _report_away(self, broker: str, error: RockoonError) -> None:
        sentence = f"broker {broker!r} of the cluster at {self.endpoint} cannot be read: {error}"
        if not self.skips_brokers_away:
            raise BrokerAway(f"{sentence}; option onBrokerAway=skip reads the others")
        log.warning("%s: its messages are left out", sentence)

    def partitions_of(
        self, broker: str, address: str, selection: Selection, split_bytes: int
    ) -> "Sequence[BrokerPartition | GenerationPartition]":
        """Cut the log of one broker; see `partitions`.

        Raises:
            RockoonError: it does not answer.
            GenerationReplaced: it takes one generation after the other into force.
        """
        with LogClient(broker, address, PLAN_RETRY_SECONDS) as client:
            found = self._generation(broker, address)
            for _ in range(_LOOKS_MAX):
                partitions = self._cut(client, found, selection, split_bytes)
                # Once more after the log's ends were asked for: when a generation came into force
                # in between, the log may have lost what only that one holds.
                before, found = found, self._generation(broker, address)
                # What another generation covers may have gone from the log since.
                if partitions is not None and found == before:
                    return partitions
        raise GenerationReplaced(f"broker {broker!r} takes generation after generation")

    def _generation(self, broker: str, address: str) -> tuple[Manifest, Coverage] | None:
        if not self.compacted:
            return None
        return generation_in_force(broker, address, PLAN_RETRY_SECONDS)

    def _cut(
        self,
        client: LogClient,
        found: tuple[Manifest, Coverage] | None,
        selection: Selection,
        split_bytes: int,
    ) -> "Sequence[BrokerPartition | GenerationPartition] | None":
        """The partitions of a broker, None if its generation is not in force any more."""
        if found is None:
            return self._of_log(client, selection, split_bytes, None)
        manifest, coverage = found
        files = BrokerGeneration(
            client.broker, client.address, manifest.generation, READ_RETRY_SECONDS, self.endpoint
        )
        try:
            parts = generation_partitions(files, manifest.parts, coverage, selection, split_bytes)
        except GenerationReplaced:
            return None
        return [*parts, *self._of_log(client, selection, split_bytes, coverage)]

    def _of_log(
        self,
        client: LogClient,
        selection: Selection,
        split_bytes: int,
        coverage: Coverage | None,
    ) -> "list[BrokerPartition]":
        # Nothing is asked for but the ends. Once, for all partitions: what is appended during the
        # read belongs to none of them.
        ends = client.read(ReadLogRequest())
        start, end = ends.log_min_offset, ends.visible_end
        if coverage is not None and coverage.holds_all(selection):
            start = max(start, coverage.log_end)
        partitions = [
            BrokerPartition(
                client.broker,
                client.address,
                cut,
                min(cut + split_bytes, end),
                cut == start,
                self,
                coverage,
            )
            for cut in range(start, end, split_bytes)
        ]
        wanted = selection.ranges.get("store_time")
        if wanted is None:
            return partitions
        begins = [*ends.time_run_starts, end]
        return _of_times(client, partitions, wanted, begins)


def _of_times(
    client: LogClient, partitions: list["BrokerPartition"], wanted: Range, begins: Sequence[int]
) -> list["BrokerPartition"]:
    """The partitions that can hold records stored within some time.

    Args:
        begins: physical offsets between which times ascend, the last one is the log's end.
    """
    # Outwards on both sides: store times are milliseconds, and the filter itself is exact.
    least_ms, most_ms = wanted.least // 1000, -(-wanted.most // 1000)
    found: list[BrokerPartition] = []
    low = 0
    for end in begins:
        high = bisect_left(partitions, end, low, key=lambda partition: partition.start)

        def first_ms(partition: BrokerPartition, end: int = end) -> int:
            return _first_store_ms(client, partition, end)

        # The first of them may begin within the partition before.
        first = max(bisect_left(partitions, least_ms, low, high, key=first_ms) - 1, low)
        behind = bisect_right(partitions, most_ms, first, high, key=first_ms)
        found += partitions[first:behind]
        # One that holds the ends of two runs has earlier times too.
        if behind < high and partitions[high - 1].stop > end:
            found.append(partitions[high - 1])
        low = high
    return found


def _first_store_ms(client: LogClient, partition: "BrokerPartition", end: int) -> int:
    """Store time of the first record at or behind a partition's beginning."""
    position, at_record = partition.start, partition.at_record
    while position < end:
        reply = client.read(
            ReadLogRequest(
                physical_offset=position, at_record=at_record, end_offset=end, max_bytes=1
            )
        )
        for records in records_of(reply, client.broker):
            return int(records.store_timestamps_ms[0])
        if reply.next_offset == position and reply.next_at_record == at_record:
            break
        position, at_record = reply.next_offset, reply.next_at_record
    return _NEVER_MS


@dataclass(frozen=True, slots=True)
class BrokerPartition:
    """A partition of one broker's log."""

    broker: str
    address: str
    """Where it was when the read was planned."""
    start: int
    """Physical offset."""
    stop: int
    """Exclusive."""
    at_record: bool
    """Whether a record starts at `start`; if not, the partition begins with the first behind it."""
    cluster: LiveCluster
    coverage: Coverage | None = None
    """Records that are read from elsewhere."""

    def read(self) -> Iterator[LogRecords | DamagedPlace]:
        """See `LogPartition`.

        Raises:
            DataLost: retention, or a crash, took messages before they were read.
            RockoonError: the broker does not answer any more, or its disk refuses.
        """
        with self._client() as client:
            ended = yield from self._parts(client, _request(self.start, self.stop, self.at_record))
            if ended is None:
                return
            behind, goes_on = ended
            if goes_on:
                # That record is another partition's, which would not see it if it is damaged.
                for part in self._parts(client, _request(behind, behind + 1, at_record=True)):
                    if isinstance(part, DamagedPlace):
                        yield part
            if behind > self.stop:
                # The next partition begins with it, unless a body holds what looks like a record.
                for part in self._parts(client, _request(self.stop, behind, at_record=False)):
                    if not isinstance(part, DamagedPlace) and len(part):
                        forged = int(part.prefix("physical_offset")[0])
                        yield DamagedPlace(self._log, forged, behind, FORGED_FAULT)

    def _client(self) -> LogClient:
        endpoint = self.cluster.endpoint
        return LogClient(self.broker, self.address, READ_RETRY_SECONDS, endpoint)

    def _parts(
        self, client: LogClient, request: ReadLogRequest
    ) -> Generator[LogRecords | DamagedPlace, None, tuple[int, bool] | None]:
        """What starts within a request's bounds.

        Returns:
            Where the last record ends, and whether the log goes on there; None without any.
        """
        stop = request.end_offset
        sees_records = request.at_record
        damaged_from: int | None = None
        client.ask(request)
        while True:
            position, at_record = request.physical_offset, request.at_record
            try:
                reply = client.answer()
            except LogTrimmed as trimmed:
                resume = int(trimmed.details["log_min_offset"])
                self._report_loss(position, min(resume, stop), "retention deleted")
                reply = ReadLogReply(next_offset=resume, next_at_record=True)
            following = _request(reply.next_offset, stop, reply.next_at_record)
            # A reply that leads nowhere: the log ends before what it had when the read was planned.
            is_stuck = following == request
            is_over = reply.next_offset >= stop or is_stuck
            if not is_over:
                # It is on its way while this one is decoded.
                client.ask(following)
            # Only behind a place where a record must start. Behind a cut the bytes are the middle
            # of one.
            if reply.skipped_bytes and at_record:
                damaged_from = position
            if damaged_from is not None and (reply.next_at_record or is_over):
                yield DamagedPlace(self._log, damaged_from, position + reply.skipped_bytes)
                damaged_from = None
            sees_records |= bool(reply.frames)
            yield from self._records(reply)
            if is_stuck:
                self._report_loss(position, stop, "a crash of the broker took")
            if is_over:
                goes_on = reply.next_at_record and reply.next_offset < reply.visible_end
                return (reply.next_offset, goes_on) if sees_records else None
            request = following

    def _records(self, reply: ReadLogReply) -> Iterator[LogRecords | DamagedPlace]:
        """The records of a reply, but for those that say that they are of another place."""
        # Each has to leave room for those before and behind it; without deleted topics' between
        # them, which are left out, that is exactly one place.
        first = reply.first_offset
        spare = reply.next_offset - first - len(reply.frames)
        for records in records_of(reply, self.broker):
            stated = records.prefix("physical_offset")
            least = first + np.cumsum(records.sizes) - records.sizes
            displaced = (stated < least) | (stated > least + spare)
            for index in np.flatnonzero(displaced).tolist():
                start = int(least[index])
                end = start + int(records.sizes[index]) + spare
                yield DamagedPlace(self._log, start, end)
            first += int(records.sizes.sum())
            kept = records.chosen(np.logical_not(displaced)) if displaced.any() else records
            yield kept if self.coverage is None else self.coverage.left(kept)

    @property
    def _log(self) -> str:
        return f"broker {self.broker!r}"

    def _report_loss(self, start: int, end: int, what: str) -> None:
        sentence = (
            f"{what} physical offsets {start} to {end} of the log of broker {self.broker!r}, which"
            " were there when the read was planned"
        )
        report_loss(sentence, fails=self.cluster.fails_on_data_loss)


def _request(position: int, stop: int, at_record: bool) -> ReadLogRequest:
    return ReadLogRequest(physical_offset=position, end_offset=stop, at_record=at_record)


def records_of(reply: ReadLogReply, broker: str) -> Iterator[LogRecords]:
    """The records of a reply."""
    sizes = np.frombuffer(reply.record_lengths, "<u4").astype(np.int64)
    frames = np.frombuffer(reply.frames, np.uint8)
    yield from in_batches(frames, reply.first_offset, np.cumsum(sizes) - sizes, sizes, broker)
