"""The log of a broker that runs, for jobs that need all of it; see `whole_log`.

Everything comes over the wire (ReadLog), so a job shares no disk with the broker, and the broker
goes on writing: what it had made durable when the job looked is what the job takes in.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rockoon.errors import LogTrimmed, RockoonError
from rockoon_proto.v1.broker_pb2 import ReadLogReply, ReadLogRequest
from rockoon_spark.broker_addresses import live_addresses
from rockoon_spark.broker_calls import LogClient
from rockoon_spark.source.live_cluster import PLAN_RETRY_SECONDS, READ_RETRY_SECONDS
from rockoon_spark.whole_logs.whole_log import LogBroken, RecordRun, no_record


@dataclass(frozen=True, slots=True)
class ServedLog:
    """The CommitLog of one broker of a cluster.

    Args:
        endpoint: the cluster's nameservers, as `rockoon.connect` takes them.
        broker: its name; may be left out where there is only one.
    """

    endpoint: str
    broker: str | None = None

    def look(self) -> "ServedReading":
        """See `ContiguousLog`.

        Raises:
            LogBroken: there is no such broker, or it does not answer.
            RockoonError: no nameserver answers.
        """
        broker, address = self._find()
        with LogClient(broker, address, PLAN_RETRY_SECONDS) as client:
            try:
                # Nothing is asked for but the ends.
                ends = client.read(ReadLogRequest())
            except RockoonError as error:
                raise LogBroken(_unread(broker, error)) from error
        start = ends.log_min_offset
        # What a crash can still take back must not be in anything that is made of it.
        end = max(min(ends.visible_end, ends.durable_end), start)
        newest = end - 1
        return ServedReading(
            broker=broker,
            address=address,
            start=start,
            sealed_end=max(newest - newest % ends.log_file_bytes, start),
            end=end,
            marks={each.topic: each.dropped_below for each in ends.dropped},
        )

    def _find(self) -> tuple[str, str]:
        addresses = live_addresses(self.endpoint)
        names = ", ".join(addresses) or "none"
        if self.broker is None and len(addresses) == 1:
            return addresses.popitem()
        if self.broker is None:
            raise LogBroken(f"say which broker of the cluster at {self.endpoint}: {names}")
        if self.broker not in addresses:
            raise LogBroken(
                f"broker {self.broker!r} is not in the routes of the cluster at {self.endpoint}; "
                f"there are: {names}"
            )
        return self.broker, addresses[self.broker]


@dataclass(frozen=True, slots=True)
class ServedReading:
    """What a broker had when it was asked."""

    broker: str
    address: str
    start: int
    sealed_end: int
    end: int
    marks: Mapping[str, int] = field(default_factory=dict)

    def partitions(self, start: int, stop: int, split_bytes: int) -> "Sequence[ServedPartition]":
        """See `LogReading`."""
        return [
            ServedPartition(
                self.broker, self.address, cut, min(cut + split_bytes, stop), cut == start
            )
            for cut in range(start, stop, split_bytes)
        ]

    def following(self, offset: int) -> int:
        """See `LogReading`."""
        wanted = _request(offset, offset + 1, at_record=True)
        wanted.max_bytes = 1
        with LogClient(self.broker, self.address, READ_RETRY_SECONDS) as client:
            client.ask(wanted)
            reply = _answer(client, wanted)
        has_more = bool(reply.frames or reply.skipped_bytes)
        return offset if has_more else int(reply.next_offset)

    def is_end(self, offset: int) -> bool:
        """See `LogReading`."""
        return offset >= self.end

    def name_at(self, _offset: int, /) -> str:
        """See `LogReading`."""
        return _name(self.broker)


@dataclass(frozen=True, slots=True)
class ServedPartition:
    """A partition of a broker's log."""

    broker: str
    address: str
    """Where it was when somebody looked."""
    start: int
    stop: int
    begins_with_record: bool

    def runs(self) -> Iterator[RecordRun]:
        """See `ContiguousPartition`."""
        wanted = _request(self.start, self.stop, at_record=self.begins_with_record)
        with LogClient(self.broker, self.address, READ_RETRY_SECONDS) as client:
            client.ask(wanted)
            while True:
                reply = _answer(client, wanted)
                following = _request(reply.next_offset, self.stop, at_record=reply.next_at_record)
                if wanted.at_record and reply.skipped_bytes:
                    end = wanted.physical_offset + reply.skipped_bytes
                    raise LogBroken(no_record(_name(self.broker), wanted.physical_offset, end))
                is_over = reply.next_offset >= self.stop
                if following == wanted and not is_over:
                    raise LogBroken(_taken(self.broker, reply.next_offset, self.stop))
                if not is_over:
                    # It is on its way while this one is worked on.
                    client.ask(following)
                if reply.frames:
                    frames = np.frombuffer(reply.frames, np.uint8)
                    yield RecordRun(frames, reply.first_offset, 0, len(frames))
                if is_over:
                    return
                wanted = following


def _request(start: int, stop: int, *, at_record: bool) -> ReadLogRequest:
    return ReadLogRequest(
        physical_offset=start, end_offset=stop, at_record=at_record, with_deleted_topics=True
    )


def _answer(client: LogClient, request: ReadLogRequest) -> ReadLogReply:
    """The answer to a request that was sent."""
    try:
        return client.answer()
    except LogTrimmed as trimmed:
        raise LogBroken(
            f"retention deleted physical offsets {request.physical_offset} to "
            f"{trimmed.details['log_min_offset']} of the log of {_name(client.broker)} "
            "while it was read; run again"
        ) from trimmed
    except RockoonError as error:
        raise LogBroken(_unread(client.broker, error)) from error


def _name(broker: str) -> str:
    return f"broker {broker!r}"


def _unread(broker: str, error: RockoonError) -> str:
    return f"{_name(broker)} cannot be read: {error}"


def _taken(broker: str, start: int, stop: int) -> str:
    return (
        f"a crash took physical offsets {start} to {stop} of the log of {_name(broker)}, which "
        "were there when the job began"
    )
