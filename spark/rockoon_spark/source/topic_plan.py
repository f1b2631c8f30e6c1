"""Plan of a batch that reads some topics of a live cluster: by queue, or by log.

If the topics are a small part of a broker's log, their queues are read, as a consumer reads them.
Otherwise the log is read, and the broker leaves out the records of other topics. Permission `read`
on the topics is enough for both.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rockoon.net.routes import TopicRoute
from rockoon_core.message_queue import QUEUES_PER_CALL_MAX, TOPICS_PER_READ_MAX, MessageQueue
from rockoon_proto.v1.broker_pb2 import (
    LogColumn,
    LogQueueRange,
    QueueState,
    ReadLogReply,
    ReadLogRequest,
)
from rockoon_spark.broker_calls import LogClient, SearchClient, StatusClient
from rockoon_spark.endpoint import AnyEndpoint
from rockoon_spark.records.selection import INT64_MAX, INT64_MIN, Range, Selection
from rockoon_spark.records.sent_columns import numbers_of
from rockoon_spark.source.queue_partition import (
    BatchRange,
    QueueCoverage,
    QueuePartition,
    QueuesPartition,
    coverage_of,
)

# Cost of a read by queue, in messages of the log that a broker leaves out for the same CPU: of each
# message that is read, and of each queue, which needs a call.
_MESSAGE_COST = 4
_QUEUE_COST = 3000


@dataclass(frozen=True, slots=True)
class SelectedTopics:
    """The topics of a read, and their queues on all brokers."""

    names: tuple[str, ...]
    create_revisions: Mapping[MessageQueue, int]
    """etcd revision at which each queue was created."""
    route_revision: int

    @classmethod
    def of(cls, routes: Iterable[TopicRoute], selection: Selection) -> "SelectedTopics | None":
        """Return the selected topics; None if the log must be read as a whole: all topics are
        selected, more than a ReadLog call may name, or topics that cannot be read by queue.

        Args:
            routes: all topics of the cluster.
            selection: of the read.
        """
        # Internal topics are not in the routes.
        has_internal = selection.includes_internal and selection.may_have_internal
        if not selection.narrows_topics or has_internal:
            return None
        chosen = [each for each in routes if selection.wants_topic(each.name)]
        if not 0 < len(chosen) <= TOPICS_PER_READ_MAX or not all(each.readable for each in chosen):
            return None
        return cls(
            tuple(sorted(each.name for each in chosen)),
            {queue: at for each in chosen for queue, at in each.create_revisions.items()},
            max(each.changed_revision for each in chosen),
        )

    def log_request(
        self, selection: Selection, broker: str, columns: Sequence[str] = ()
    ) -> ReadLogRequest:
        """Return a request for the selected records of a broker's log, without positions.

        Args:
            columns: see `LogSource.partitions`.
        """
        times = selection.ranges.get("store_time", Range())
        named = sorted(
            {(topic, number) for topic, _, number in [*selection.starts, *selection.ends]}
        )
        ranges = []
        # More queues are left to the selection of the reader.
        for topic, number in named if len(named) <= QUEUES_PER_CALL_MAX else ():
            least, end = selection.offsets_of(topic, broker, number)
            end_offset = 0 if end == INT64_MAX else max(end, 1)
            ranges.append(
                LogQueueRange(
                    topic=topic, queue_id=number, offset=max(least, 0), end_offset=end_offset
                )
            )
        return ReadLogRequest(
            topics=self.names,
            queues=ranges,
            from_store_timestamp_ms=_first_ms(times),
            until_store_timestamp_ms=_end_ms(times),
            columns=numbers_of(columns) if _is_of_request(selection) else (),
        )


@dataclass(frozen=True, slots=True)
class BrokerQueues:
    """The selected messages of one broker, by queue.

    Args:
        ranges: of the queues that have selected messages.
        coverages: of all their queues.
    """

    ranges: Sequence[BatchRange]
    coverages: Mapping[MessageQueue, QueueCoverage]

    @property
    def is_compacted(self) -> bool:
        """True if a generation covers a queue."""
        return any(each is not None for each in self.coverages.values())

    def is_small(self, ends: ReadLogReply) -> bool:
        """True if a read by queue costs less than a read of the log, whose ends are given."""
        count = sum(each.stop - each.start for each in self.ranges)
        cost = count * _MESSAGE_COST + len(self.ranges) * _QUEUE_COST
        return cost <= ends.queue_entries

    def partitions(
        self,
        client: LogClient,
        ends: ReadLogReply,
        topics: SelectedTopics,
        split_bytes: int,
        *,
        fails_on_data_loss: bool,
        endpoint: AnyEndpoint,
        columns: Sequence[LogColumn],
    ) -> list[QueuesPartition]:
        """Divide the messages into partitions of about `split_bytes`.

        Args:
            columns: see `QueuePartition`.
        """
        log_bytes = ends.visible_end - ends.log_min_offset
        messages_max = max(split_bytes * ends.queue_entries // max(log_bytes, 1), 1)
        return [
            QueuesPartition(
                [
                    QueuePartition(
                        each,
                        client.address,
                        topics.route_revision,
                        fails_on_data_loss,
                        endpoint,
                        columns,
                    )
                    for each in some
                ],
                {each.queue: self.coverages[each.queue] for each in some},
            )
            for some in _packed(self.ranges, messages_max)
        ]


def queues_of(
    client: LogClient,
    ends: ReadLogReply,
    topics: SelectedTopics,
    selection: Selection,
    endpoint: AnyEndpoint,
) -> BrokerQueues:
    """Return the selected messages of a broker.

    Args:
        client: of the broker.
        ends: of its log; older than the result, so that the log from there on contains all messages
            of a queue that no generation covers.

    Raises:
        RockoonError: the broker does not answer, or refuses the call.
    """
    own = [queue for queue in topics.create_revisions if queue.broker == client.broker]
    found: dict[MessageQueue, QueueState] = {}
    if own:
        with StatusClient(client.broker, client.address, client.retry_seconds, endpoint) as status:
            states = status.states(own, topics.route_revision)
            found = {queue: each for queue, each in states.items() if not each.HasField("error")}
    # Within one run of the log, store times ascend in each queue, so a search by time is exact.
    searched = () if ends.time_run_starts else found
    times = {queue: selection.times_of(*queue) for queue in searched}
    first_ms = {queue: _first_ms(each) for queue, each in times.items()}
    end_ms = {queue: _end_ms(each) for queue, each in times.items()}
    firsts = _search(client, first_ms, topics, endpoint)
    stops = _search(client, end_ms, topics, endpoint)
    ranges = []
    for queue, state in sorted(found.items()):
        least, end = selection.offsets_of(*queue)
        start = max(state.min_offset, least, firsts.get(queue, 0))
        stop = min(state.max_offset, end, stops.get(queue, INT64_MAX))
        if start < stop:
            ranges.append(BatchRange(queue, start, stop, topics.create_revisions[queue]))
    return BrokerQueues(ranges, {queue: coverage_of(each) for queue, each in found.items()})


def _search(
    client: LogClient,
    times_ms: Mapping[MessageQueue, int],
    topics: SelectedTopics,
    endpoint: AnyEndpoint,
) -> dict[MessageQueue, int]:
    """Return the first offset of each queue at its time; none for the time 0."""
    by_time: dict[int, list[MessageQueue]] = defaultdict(list)
    for queue, time_ms in times_ms.items():
        if time_ms:
            by_time[time_ms].append(queue)
    found: dict[MessageQueue, int] = {}
    if not by_time:
        return found
    with SearchClient(client.broker, client.address, client.retry_seconds, endpoint) as search:
        for time_ms, queues in by_time.items():
            found |= search.offsets(queues, topics.route_revision, time_ms)
    return found


def _is_of_request(selection: Selection) -> bool:
    """True if a broker selects exactly the same records by topics, and store times in milliseconds.

    Other selections need whole records.
    """
    times = selection.ranges.get("store_time", Range())
    is_exact = times.most >= 0 and (times.least <= 0 or times.least % 1000 == 0)
    by_queue = selection.starts, selection.ends, selection.assigned, selection.queue_times
    return is_exact and "tags" not in selection.one_of and not any(by_queue)


def _first_ms(times: Range) -> int:
    """Return the start of a range of store times as epoch milliseconds; 0 without a start."""
    return 0 if times.least == INT64_MIN else max(times.least // 1000, 0)


def _end_ms(times: Range) -> int:
    """Return the exclusive end of a range of store times as epoch milliseconds; 0 without one."""
    return 0 if times.most == INT64_MAX else max(times.most // 1000 + 1, 1)


def _packed(ranges: Iterable[BatchRange], messages_max: int) -> Iterator[list[BatchRange]]:
    """Divide ranges into lists of `messages_max` messages each; the last may have fewer."""
    packed: list[BatchRange] = []
    room = messages_max
    for whole in ranges:
        at = whole.start
        while at < whole.stop:
            stop = min(whole.stop, at + room)
            packed.append(BatchRange(whole.queue, at, stop, whole.create_revision))
            room -= stop - at
            at = stop
            if not room:
                yield packed
                packed, room = [], messages_max
    if packed:
        yield packed
