"""The logs of a running cluster, read from its brokers.

A read is consistent: its plan contains the start and the end of each broker's log at the moment of
planning. All messages that were acknowledged before are read.
"""

import logging
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from rockoon.errors import LogTrimmed, NotPermitted, RockoonError
from rockoon_proto.v1.broker_pb2 import ReadLogReply, ReadLogRequest
from rockoon_spark.broker_calls import (
    PLAN_RETRY_SECONDS,
    ClusterTopology,
    LogClient,
    cluster_topology,
    is_unreachable,
    live_addresses,
)
from rockoon_spark.endpoint import AnyEndpoint
from rockoon_spark.generations.broker_generation import current_generation
from rockoon_spark.generations.parts import CurrentGeneration, with_generation
from rockoon_spark.records.record_run import LogBroken
from rockoon_spark.records.selection import EVERYTHING, Coverage, Range, Selection
from rockoon_spark.source.broker_partition import BrokerPartition, records_of
from rockoon_spark.source.log_source import (
    BrokerAway,
    CheckQueues,
    ExistingQueues,
    LastRecord,
    LogPartition,
    existing_queues,
)
from rockoon_spark.source.topic_plan import SelectedTopics, queues_of

log = logging.getLogger(__name__)

_NEVER_MS = 1 << 62

Found = TypeVar("Found")


class LogUnreadable(Exception):
    """A broker answers but does not return its log: it refuses the call, or its disk fails."""


@dataclass(frozen=True, slots=True)
class LiveCluster:
    """`LogSource` for a running cluster.

    Args:
        endpoint: of the cluster.
        skips_brokers_away: True to skip brokers that cannot be reached.
        fails_on_data_loss: True to fail if messages are deleted before they are read.
        compacted: True to read compacted topics as a consumer does; see `Coverage`.
        broker: name of the only broker to read; None for all.
    """

    endpoint: AnyEndpoint
    skips_brokers_away: bool = False
    fails_on_data_loss: bool = True
    compacted: bool = False
    broker: str | None = None

    def partitions(
        self,
        selection: Selection,
        split_bytes: int,
        check: CheckQueues | None = None,
        columns: Sequence[str] = (),
    ) -> Sequence[LogPartition]:
        """Divide the logs of the brokers into partitions; see `LogSource`.

        Raises:
            BrokerAway: a broker that has messages cannot be reached, and the option does not skip
                it; or no broker can be reached; or a selected broker is not in this cluster.
            LogUnreadable: a broker answers with an error.
            RockoonError: no nameserver answers.
            GenerationReplaced: a broker replaced its generation during each attempt.
        """
        topology = cluster_topology(self.endpoint)
        if check is not None:
            check(existing_queues(topology.routes))
        topics = SelectedTopics.of(topology.routes, selection) if selection.narrows_topics else None

        def of_broker(broker: str, address: str) -> Sequence[LogPartition]:
            return self.partitions_of(broker, address, selection, split_bytes, topics, columns)

        found = self._of_brokers(topology, selection, of_broker)
        return [partition for own in found for partition in own]

    def _of_brokers(
        self,
        topology: ClusterTopology,
        selection: Selection,
        of_broker: Callable[[str, str], Found],
    ) -> list[Found]:
        """Call `of_broker` with the name and address of each selected broker.

        Raises:
            BrokerAway, LogUnreadable, RockoonError: see `partitions`.
        """
        if self.broker is not None:
            selection = selection.among("broker", frozenset({self.broker}))
        found: list[Found] = []
        named = selection.one_of.get("broker", frozenset())
        unknown = named - topology.addresses.keys() - topology.failures.keys()
        if unknown:
            raise BrokerAway(f"the cluster at {self.endpoint} has no broker {min(unknown)!r}")
        failures = {
            name: each for name, each in topology.failures.items() if selection.wants_broker(name)
        }
        for broker, address in topology.addresses.items():
            if not selection.wants_broker(broker):
                continue
            try:
                found.append(of_broker(broker, address))
            except RockoonError as error:
                failures[broker] = error
        for broker, failure in failures.items():
            self._report_failure(broker, failure)
        if failures and not found:
            raise BrokerAway(
                f"no broker of the cluster at {self.endpoint} can be reached:"
                f" {', '.join(sorted(failures))}; nothing was read"
            )
        return found

    def _report_failure(self, broker: str, error: RockoonError) -> None:
        """Raise the error of a broker, or log it if the broker may be skipped."""
        sentence = f"broker {broker!r} of the cluster at {self.endpoint} cannot be read: {error}"
        if not is_unreachable(error):
            raise LogUnreadable(sentence) from error
        if not self.skips_brokers_away:
            raise BrokerAway(
                f"{sentence}; option onBrokerAway=skip reads the other brokers"
            ) from error
        log.warning("%s: its messages are skipped", sentence)

    def partitions_of(
        self,
        broker: str,
        address: str,
        selection: Selection,
        split_bytes: int,
        topics: SelectedTopics | None = None,
        columns: Sequence[str] = (),
    ) -> Sequence[LogPartition]:
        """Divide the log of one broker into partitions; see `partitions`.

        Args:
            topics: the selected topics; None to read the log as a whole.
            columns: see `LogSource.partitions`.

        Raises:
            RockoonError: it does not answer, or refuses the call.
            GenerationReplaced: it replaced its generation during each attempt.
        """
        with LogClient(broker, address, PLAN_RETRY_SECONDS, self.endpoint) as client:
            refusal: NotPermitted | None = None
            if topics is not None:
                try:
                    found = self._of_topics(client, topics, selection, split_bytes, columns)
                except NotPermitted as error:
                    # The key may have `admin` on the cluster, and with it the whole log.
                    refusal = error
                else:
                    if found is not None:
                        return found
            try:
                return self._of_whole_log(client, selection, split_bytes)
            except NotPermitted as error:
                raise refusal or error from None

    def _of_topics(
        self,
        client: LogClient,
        topics: SelectedTopics,
        selection: Selection,
        split_bytes: int,
        columns: Sequence[str],
    ) -> Sequence[LogPartition] | None:
        """Return the partitions of some topics; None if the broker is too old to choose by queue
        or by log.
        """
        wanted = topics.log_request(selection, client.broker, columns)
        # An empty request returns only the ends.
        ends = client.read(ReadLogRequest(topics=wanted.topics))
        if not ends.HasField("queue_entries"):
            return None
        queues = queues_of(client, ends, topics, selection, self.endpoint)
        # Only the queues have the messages of a generation.
        if (self.compacted or not queues.is_compacted) and (
            queues.is_compacted or queues.is_small(ends)
        ):
            return queues.partitions(
                client,
                ends,
                topics,
                split_bytes,
                fails_on_data_loss=self.fails_on_data_loss,
                endpoint=self.endpoint,
                # A search by time does not select exactly.
                columns=() if selection.ranges else tuple(wanted.columns),
            )
        return self._of_log(client, ends, selection, split_bytes, wanted=wanted)

    def _of_whole_log(
        self, client: LogClient, selection: Selection, split_bytes: int
    ) -> Sequence[LogPartition]:
        def current() -> CurrentGeneration | None:
            if not self.compacted:
                return None
            return current_generation(client.broker, client.address, self.endpoint)

        def of_log(coverage: Coverage | None) -> Sequence[LogPartition]:
            ends = client.read(ReadLogRequest())
            return self._of_log(client, ends, selection, split_bytes, coverage)

        return with_generation(current, of_log, selection, split_bytes)

    def _of_log(
        self,
        client: LogClient,
        ends: ReadLogReply,
        selection: Selection,
        split_bytes: int,
        coverage: Coverage | None = None,
        wanted: ReadLogRequest | None = None,
    ) -> list[BrokerPartition]:
        """Divide the log into partitions.

        Args:
            ends: of the log, read once for all partitions: records appended later belong to none.
            coverage: see `ContiguousPartition`.
            wanted: see `BrokerPartition`.
        """
        start, end = ends.log_min_offset, ends.visible_end
        if coverage is not None and coverage.holds_all(selection):
            start = max(start, coverage.log_end)
        whole = BrokerLog.of(self, client, ends).between(start, end)
        whole = replace(whole, coverage=coverage, wanted=wanted or ReadLogRequest())
        partitions = whole.cut(split_bytes)
        times = selection.ranges.get("store_time")
        if times is None:
            return partitions
        begins = [*ends.time_run_starts, end]
        return _of_times(client, partitions, times, begins)

    def existing(self) -> ExistingQueues:
        """Return the topics that this client may see, and their queues; see `LogSource`.

        Raises:
            RockoonError: no nameserver answers.
        """
        return existing_queues(cluster_topology(self.endpoint).routes)

    def log(self) -> "BrokerLog":
        broker, address = self._only_broker()
        try:
            return self._log_of(broker, address)
        except RockoonError as error:
            raise LogBroken(f"broker {broker!r} cannot be read: {error}") from error

    def logs(self) -> "Sequence[BrokerLog]":
        found = self._of_brokers(cluster_topology(self.endpoint), EVERYTHING, self._log_of)
        return [log for log in found if log.end > log.start]

    def _log_of(self, broker: str, address: str) -> "BrokerLog":
        with LogClient(broker, address, PLAN_RETRY_SECONDS, self.endpoint) as client:
            # An empty request returns only the ends.
            return BrokerLog.of(self, client, client.read(ReadLogRequest()))

    def _only_broker(self) -> tuple[str, str]:
        addresses = live_addresses(self.endpoint)
        names = ", ".join(addresses) or "none"
        if self.broker is None and len(addresses) == 1:
            return addresses.popitem()
        if self.broker is None:
            raise LogBroken(
                f"the cluster at {self.endpoint} has several brokers, name one of them: {names}"
            )
        if self.broker not in addresses:
            raise LogBroken(
                f"broker {self.broker!r} is not in the routes of the cluster at {self.endpoint}; "
                f"its brokers: {names}"
            )
        return self.broker, addresses[self.broker]


@dataclass(frozen=True, slots=True)
class BrokerLog:
    """`ContiguousLog` of a running broker: the state of its log at one moment.

    Args:
        broker: its name.
        address: its address at that moment.
        endpoint: nameservers, asked for its new address if it no longer answers.
        start, sealed_end, end, marks: see `ContiguousLog`.
        fails_on_data_loss: see `ContiguousPartition`.
    """

    broker: str
    address: str
    endpoint: AnyEndpoint
    start: int
    sealed_end: int
    end: int
    marks: Mapping[str, int] = field(default_factory=dict)
    fails_on_data_loss: bool = True
    is_end_known = True

    @classmethod
    def of(cls, cluster: LiveCluster, client: LogClient, ends: ReadLogReply) -> "BrokerLog":
        """Create from the broker's reply with the ends of its log."""
        start = ends.log_min_offset
        # Limited to durable records: after a crash, other records may have the physical offsets of
        # records that were not durable.
        end = max(min(ends.visible_end, ends.durable_end), start)
        newest = end - 1
        return cls(
            broker=client.broker,
            address=client.address,
            endpoint=cluster.endpoint,
            start=start,
            sealed_end=max(newest - newest % ends.log_file_bytes, start),
            end=end,
            marks={each.topic: each.dropped_below for each in ends.dropped},
            fails_on_data_loss=cluster.fails_on_data_loss,
        )

    def _client(self) -> LogClient:
        return LogClient(self.broker, self.address, PLAN_RETRY_SECONDS, self.endpoint)

    def between(self, start: int, stop: int) -> BrokerPartition:
        """Return one partition between two physical offsets; a record starts at `start`."""
        return BrokerPartition(
            broker=self.broker,
            address=self.address,
            endpoint=self.endpoint,
            start=start,
            stop=stop,
            at_record=True,
            fails_on_data_loss=self.fails_on_data_loss,
        )

    def partitions(
        self, start: int, stop: int, split_bytes: int | None = None, *, at_record: bool = True
    ) -> list[BrokerPartition]:
        whole = replace(self.between(start, stop), at_record=at_record)
        # A partition can be long, because it is read in small replies.
        return whole.cut(split_bytes or max(stop - start, 1))

    def following(self, offset: int) -> int:
        return self.between(offset, offset + 1).following()

    def is_end(self, offset: int) -> bool:
        return offset >= self.end

    def name_at(self, _offset: int, /) -> str:
        return f"broker {self.broker!r}"

    def oldest(self) -> int:
        with self._client() as client:
            return int(client.read(ReadLogRequest()).log_min_offset)

    def knows(self, last: LastRecord) -> bool | None:
        request = ReadLogRequest(
            physical_offset=last.offset, at_record=True, end_offset=last.offset + 1, max_bytes=1
        )
        with self._client() as client:
            try:
                reply = client.read(request)
            except LogTrimmed:
                return None
        if reply.frames:
            return zlib.crc32(reply.frames) == last.crc32
        # Skipped bytes: other data is at this offset. Otherwise the record's topic was deleted.
        return False if reply.skipped_bytes else None


def _of_times(
    client: LogClient, partitions: list[BrokerPartition], wanted: Range, begins: Sequence[int]
) -> list[BrokerPartition]:
    """Return the partitions that can contain records with store times in a range.

    Args:
        begins: physical offsets between which store times ascend; the last is the log's end.
    """
    # Rounded outwards to milliseconds; the selection of records is exact.
    least_ms, most_ms = wanted.least // 1000, -(-wanted.most // 1000)
    found: list[BrokerPartition] = []
    low = 0
    for end in begins:
        high = bisect_left(partitions, end, low, key=lambda partition: partition.start)

        def first_ms(partition: BrokerPartition, end: int = end) -> int:
            return _first_store_ms(client, partition, end)

        # The first matching record may be in the partition before.
        first = max(bisect_left(partitions, least_ms, low, high, key=first_ms) - 1, low)
        stop = bisect_right(partitions, most_ms, first, high, key=first_ms)
        found += partitions[first:stop]
        # The last partition may extend into the next run, which has earlier times.
        if stop < high and partitions[high - 1].stop > end:
            found.append(partitions[high - 1])
        low = high
    return found


def _first_store_ms(client: LogClient, partition: BrokerPartition, end: int) -> int:
    """Return the store time of the first record at or after a partition's start."""
    whole = partition.of_whole_records()
    position, at_record = partition.start, partition.at_record
    while position < end:
        reply = client.read(whole.request(position, end, at_record, bytes_max=1))
        for records in records_of(reply, client.broker):
            return int(records.store_timestamps_ms[0])
        if reply.next_offset == position and reply.next_at_record == at_record:
            break
        position, at_record = reply.next_offset, reply.next_at_record
    return _NEVER_MS
