"""The logs of a cluster that runs, read from its brokers.

A read is of one moment: its plan names each broker's log as readers saw it then, from its beginning
to its end. Every message whose sender had its acknowledgement before that is in it.
"""

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

import rockoon.sync
from rockoon.errors import LogTrimmed, RockoonError
from rockoon.which_brokers import away, live_brokers
from rockoon_proto.v1.broker_pb2 import ReadLogReply, ReadLogRequest
from rockoon_spark.log_client import LogClient
from rockoon_spark.log_columns import LogRecords
from rockoon_spark.selection import Range, Selection
from rockoon_spark.stretches import DamagedPlace, in_batches

log = logging.getLogger(__name__)

# How long a broker that does not answer is asked again: at most, before a read is planned.
PLAN_RETRY_SECONDS = 2.0
# And while its log is read: a broker that is restarted comes back within this.
READ_RETRY_SECONDS = 20.0
_NEVER_MS = 1 << 62


class BrokerAway(Exception):
    """A broker's log cannot be read."""


class DataLost(Exception):
    """Messages that were there when a read was planned are there no more."""


@dataclass(frozen=True, slots=True)
class LiveCluster:
    """A cluster.

    Args:
        endpoint: its nameservers, as `rockoon.connect` takes them.
        skips_brokers_away: whether to read the others when a broker does not answer.
        fails_on_data_loss: whether to fail when messages are deleted before they are read.
    """

    endpoint: str
    skips_brokers_away: bool = False
    fails_on_data_loss: bool = True

    def stretches(self, selection: Selection, split_bytes: int) -> Sequence["BrokerStretch"]:
        """See `LogPlace`.

        Raises:
            BrokerAway: a broker that has messages does not answer.
            RockoonError: no nameserver answers.
        """
        found: list[BrokerStretch] = []
        addresses, failures = self._brokers()
        for broker, address in addresses.items():
            if not selection.wants_broker(broker):
                continue
            with LogClient(broker, address, PLAN_RETRY_SECONDS) as client:
                try:
                    found += self._stretches_of(client, selection, split_bytes)
                except RockoonError as error:
                    failures[broker] = error
        for broker, failure in failures.items():
            if selection.wants_broker(broker):
                self._report_away(broker, failure)
        return found

    def _brokers(self) -> tuple[dict[str, str], dict[str, RockoonError]]:
        """Addresses of the brokers in the routes, and which of others there should be."""
        with rockoon.sync.connect(self.endpoint) as cluster:
            connection = cluster.asyncio
            failures: dict[str, RockoonError] = dict(cluster.call(away(connection)))
            # Read in the loop's thread, where they change.
            addresses = cluster.call(_addresses(connection))
        return addresses, failures

    def _report_away(self, broker: str, error: RockoonError) -> None:
        sentence = f"broker {broker!r} of the cluster at {self.endpoint} cannot be read: {error}"
        if not self.skips_brokers_away:
            raise BrokerAway(f"{sentence}; option onBrokerAway=skip reads the others")
        log.warning("%s: its messages are left out", sentence)

    def _stretches_of(
        self, client: LogClient, selection: Selection, split_bytes: int
    ) -> list["BrokerStretch"]:
        # Nothing is asked for but the ends.
        ends = client.read(ReadLogRequest())
        start, end = ends.log_min_offset, ends.visible_end
        cuts = list(range(start, end, split_bytes))
        stretches = [
            BrokerStretch(
                client.broker, client.address, cut, min(cut + split_bytes, end), cut == start, self
            )
            for cut in cuts
        ]
        wanted = selection.ranges.get("store_time")
        if wanted is None:
            return stretches
        return _of_times(client, stretches, wanted, end)


async def _addresses(connection: rockoon.Cluster) -> dict[str, str]:
    found = {name: connection.routes.broker_address(name) for name in live_brokers(connection)}
    return {name: address for name, address in found.items() if address is not None}


def _of_times(
    client: LogClient, stretches: list["BrokerStretch"], wanted: Range, end: int
) -> list["BrokerStretch"]:
    """The stretches that can hold records stored within some time; times ascend over the log."""

    def first_ms(stretch: BrokerStretch) -> int:
        return _first_store_ms(client, stretch, end)

    least_ms, most_ms = wanted.least // 1000, -(-wanted.most // 1000)
    # The first of them may begin within the stretch before.
    first = max(bisect_left(stretches, least_ms, key=first_ms) - 1, 0)
    behind = bisect_right(stretches, most_ms, key=first_ms)
    return stretches[first:behind]


def _first_store_ms(client: LogClient, stretch: "BrokerStretch", end: int) -> int:
    """Store time of the first record at or behind a stretch's beginning."""
    position, at_record = stretch.start, stretch.at_record
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
class BrokerStretch:
    """A stretch of one broker's log."""

    broker: str
    address: str
    """Where it was when the read was planned."""
    start: int
    """Physical offset."""
    stop: int
    """Exclusive."""
    at_record: bool
    """Whether a record starts at `start`; if not, the stretch begins with the first behind it."""
    cluster: LiveCluster

    def read(self) -> Iterator[LogRecords | DamagedPlace]:
        """See `Stretch`.

        Raises:
            DataLost: retention, or a crash, took messages before they were read.
            RockoonError: the broker does not answer any more, or its disk refuses.
        """
        with LogClient(self.broker, self.address, READ_RETRY_SECONDS) as client:
            damaged_from: int | None = None
            request = self._request(self.start, self.at_record)
            client.ask(request)
            while True:
                position, at_record = request.physical_offset, request.at_record
                try:
                    reply = client.answer()
                except LogTrimmed as trimmed:
                    resume = int(trimmed.details["log_min_offset"])
                    self._report_loss(position, min(resume, self.stop), "retention deleted")
                    reply = ReadLogReply(next_offset=resume, next_at_record=True)
                following = self._request(reply.next_offset, reply.next_at_record)
                is_stuck = following == request
                is_over = reply.next_offset >= self.stop or is_stuck
                if not is_over:
                    # It is on its way while this one is decoded.
                    client.ask(following)
                if reply.skipped_bytes and at_record:
                    damaged_from = position
                if damaged_from is not None and (reply.next_at_record or is_over):
                    yield DamagedPlace(
                        f"broker {self.broker!r}", damaged_from, position + reply.skipped_bytes
                    )
                    damaged_from = None
                yield from records_of(reply, self.broker)
                if is_stuck:
                    self._report_loss(position, self.stop, "a crash of the broker took")
                if is_over:
                    return
                request = following

    def _request(self, position: int, at_record: bool) -> ReadLogRequest:
        return ReadLogRequest(physical_offset=position, at_record=at_record, end_offset=self.stop)

    def _report_loss(self, start: int, end: int, what: str) -> None:
        sentence = (
            f"{what} physical offsets {start} to {end} of the log of broker {self.broker!r}, which"
            " were there when the read was planned"
        )
        if self.cluster.fails_on_data_loss:
            raise DataLost(f"{sentence}; option failOnDataLoss=false reads what is left")
        log.warning("%s", sentence)


def records_of(reply: ReadLogReply, broker: str) -> Iterator[LogRecords]:
    """The records of a reply."""
    sizes = np.frombuffer(reply.record_lengths, "<u4").astype(np.int64)
    frames = np.frombuffer(reply.frames, np.uint8)
    yield from in_batches(frames, reply.first_offset, np.cumsum(sizes) - sizes, sizes, broker)
