"""Partitions of the log of a broker that runs, read over the wire (ReadLog).

No disk is shared, and the broker goes on writing. A reply has what fits into it, and the next one
is on its way while it is worked on.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass

import numpy as np

from rockoon.errors import LogTrimmed, RockoonError
from rockoon_format.frames import IntArray
from rockoon_proto.v1.broker_pb2 import ReadLogReply, ReadLogRequest
from rockoon_spark.broker_calls import READ_RETRY_SECONDS, LogClient
from rockoon_spark.records.columns import LogRecords
from rockoon_spark.records.record_run import LogBroken, RecordRun, no_record
from rockoon_spark.source.log_source import (
    FORGED_FAULT,
    ContiguousPartition,
    DamagedRange,
    in_batches,
    report_loss,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPartition(ContiguousPartition):
    """A piece of one broker's log; see `ContiguousPartition`."""

    broker: str
    address: str
    """Where it was when the read was planned."""
    endpoint: str
    """Nameservers that know where it is by then."""

    def read(self) -> Iterator[LogRecords | DamagedRange]:
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
                    if isinstance(part, DamagedRange):
                        yield part
            if behind > self.stop:
                # The next partition begins with it, unless a body holds what looks like a record.
                for part in self._parts(client, _request(self.stop, behind, at_record=False)):
                    if not isinstance(part, DamagedRange) and len(part):
                        forged = int(part.prefix("physical_offset")[0])
                        yield DamagedRange(self._log, forged, behind, FORGED_FAULT)

    def records(self, _offsets: IntArray | None = None) -> Iterator[LogRecords | DamagedRange]:
        """See `ContiguousPartition`; a broker gives all or nothing."""
        return self.read()

    def _client(self) -> LogClient:
        return LogClient(self.broker, self.address, READ_RETRY_SECONDS, self.endpoint)

    def _parts(
        self, client: LogClient, request: ReadLogRequest
    ) -> Generator[LogRecords | DamagedRange, None, tuple[int, bool] | None]:
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
                yield DamagedRange(self._log, damaged_from, position + reply.skipped_bytes)
                damaged_from = None
            sees_records |= bool(reply.frames)
            yield from self._records(reply)
            if is_stuck:
                self._report_loss(position, stop, "a crash of the broker took")
            if is_over:
                # Behind a cut without any record there is one that began before it: what follows
                # that is told by the partition that has it.
                goes_on = reply.next_at_record and reply.next_offset < reply.visible_end
                return (reply.next_offset, goes_on) if sees_records else None
            request = following

    def _records(self, reply: ReadLogReply) -> Iterator[LogRecords | DamagedRange]:
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
                yield DamagedRange(self._log, start, end)
            first += int(records.sizes.sum())
            kept = records.chosen(np.logical_not(displaced)) if displaced.any() else records
            yield kept if self.coverage is None else self.coverage.left(kept)

    def runs(self) -> Iterator[RecordRun]:
        """See `ContiguousPartition`."""
        with self._client() as client:
            # Deleted topics' too: without them the records would not follow one another.
            wanted = _request(self.start, self.stop, self.at_record, with_deleted_topics=True)
            client.ask(wanted)
            while True:
                reply = self._answer(client, wanted)
                following = _request(
                    reply.next_offset, self.stop, reply.next_at_record, with_deleted_topics=True
                )
                if wanted.at_record and reply.skipped_bytes:
                    end = wanted.physical_offset + reply.skipped_bytes
                    raise LogBroken(no_record(self._log, wanted.physical_offset, end))
                is_over = reply.next_offset >= self.stop
                if following == wanted and not is_over:
                    raise LogBroken(
                        f"a crash took physical offsets {reply.next_offset} to {self.stop} of the "
                        f"log of {self._log}, which were there when the job began"
                    )
                if not is_over:
                    client.ask(following)
                if reply.frames:
                    yield RecordRun(reply.frames, reply.first_offset, len(reply.frames))
                if is_over:
                    return
                wanted = following

    def following(self) -> int:
        """Where the log goes on behind a record that ends at `start`; see `ContiguousLog`."""
        wanted = _request(self.start, self.start + 1, at_record=True, with_deleted_topics=True)
        wanted.max_bytes = 1
        with self._client() as client:
            client.ask(wanted)
            reply = self._answer(client, wanted)
        has_more = bool(reply.frames or reply.skipped_bytes)
        return self.start if has_more else int(reply.next_offset)

    def _answer(self, client: LogClient, request: ReadLogRequest) -> ReadLogReply:
        """The answer to a request that was sent, for a job that needs all of it."""
        try:
            return client.answer()
        except LogTrimmed as trimmed:
            raise LogBroken(
                f"retention deleted physical offsets {request.physical_offset} to "
                f"{trimmed.details['log_min_offset']} of the log of {self._log} "
                "while it was read; run again"
            ) from trimmed
        except RockoonError as error:
            raise LogBroken(f"{self._log} cannot be read: {error}") from error

    @property
    def _log(self) -> str:
        return f"broker {self.broker!r}"

    def _report_loss(self, start: int, end: int, what: str) -> None:
        sentence = (
            f"{what} physical offsets {start} to {end} of the log of broker {self.broker!r}, which"
            " were there when the read was planned"
        )
        report_loss(sentence, fails=self.fails_on_data_loss)


def _request(
    position: int, stop: int, at_record: bool, *, with_deleted_topics: bool = False
) -> ReadLogRequest:
    return ReadLogRequest(
        physical_offset=position,
        end_offset=stop,
        at_record=at_record,
        with_deleted_topics=with_deleted_topics,
    )


def records_of(reply: ReadLogReply, broker: str) -> Iterator[LogRecords]:
    """The records of a reply."""
    sizes = np.frombuffer(reply.record_lengths, "<u4").astype(np.int64)
    frames = np.frombuffer(reply.frames, np.uint8)
    yield from in_batches(frames, reply.first_offset, np.cumsum(sizes) - sizes, sizes, broker)
