"""Partitions of a running broker's log, read with ReadLog calls; no shared disk is needed.

A partition is read by several calls, because the size of a reply is limited. The next call is in
flight while the reply before it is decoded.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from rockoon.errors import LogTrimmed, RockoonError
from rockoon_format.frames import IntArray
from rockoon_proto.v1.broker_pb2 import ReadLogReply, ReadLogRequest
from rockoon_spark.broker_calls import READ_RETRY_SECONDS, LogClient
from rockoon_spark.endpoint import AnyEndpoint
from rockoon_spark.records.columns import LogRecords
from rockoon_spark.records.record_run import LogBroken, RecordRun, no_record
from rockoon_spark.records.sent_columns import SentColumns
from rockoon_spark.source.log_source import (
    FORGED_FAULT,
    ContiguousPartition,
    DamagedRange,
    in_batches,
    report_loss,
)

# Replies of 1 MiB cost up to a third more CPU, those of 4 MiB cost as much.
_REPLY_BYTES = 2 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPartition(ContiguousPartition):
    """Range of one broker's log that one task reads from the broker; see `ContiguousPartition`."""

    broker: str
    address: str
    """Address of the broker when the read was planned."""
    endpoint: AnyEndpoint
    """Nameservers, which are asked for the broker's new address if it no longer answers."""
    wanted: ReadLogRequest = field(default_factory=ReadLogRequest)
    """Topics, queues, times and columns of the records that the broker sends; an older broker sends
    all records, with all columns."""

    def request(
        self, position: int, stop: int, at_record: bool, *, bytes_max: int = _REPLY_BYTES
    ) -> ReadLogRequest:
        """Return a request for the wanted records between two physical offsets."""
        request = ReadLogRequest()
        request.CopyFrom(self.wanted)
        request.physical_offset = position
        request.end_offset = stop
        request.at_record = at_record
        request.max_bytes = bytes_max
        return request

    def read(self) -> Iterator[LogRecords | SentColumns | DamagedRange]:
        """Yield the records of the range, read from the broker; see `LogPartition`.

        Raises:
            DataLost: messages were deleted by retention, or lost in a crash, before they were read.
            RockoonError: the broker no longer answers, or its disk fails.
        """
        with self._client() as client:
            request = self.request(self.start, self.stop, self.at_record)
            result = yield from self._batches(client, request)
            if result is None:
                return
            end, has_more = result
            whole = self.of_whole_records()
            if has_more:
                # Damage at the start of the next partition: that partition does not detect it.
                for batch in whole._batches(client, whole.request(end, end + 1, at_record=True)):
                    if isinstance(batch, DamagedRange):
                        yield batch
            if end > self.stop:
                # The next partition begins at `end`, unless a body contains a forged record.
                for batch in whole._batches(client, whole.request(self.stop, end, at_record=False)):
                    if isinstance(batch, LogRecords) and len(batch):
                        forged = int(batch.prefix("physical_offset")[0])
                        yield DamagedRange(self._log, forged, end, FORGED_FAULT)

    def records(self, _offsets: IntArray | None = None) -> Iterator[LogRecords | DamagedRange]:
        """Yield all records of the range, because a broker cannot select records; see
        `ContiguousPartition`.
        """
        for found in self.of_whole_records().read():
            assert not isinstance(found, SentColumns)
            yield found

    def of_whole_records(self) -> "BrokerPartition":
        """Return this partition without a choice of columns."""
        wanted = ReadLogRequest()
        wanted.CopyFrom(self.wanted)
        wanted.ClearField("columns")
        return replace(self, wanted=wanted)

    def _client(self) -> LogClient:
        return LogClient(self.broker, self.address, READ_RETRY_SECONDS, self.endpoint)

    def _batches(
        self, client: LogClient, request: ReadLogRequest
    ) -> Generator[LogRecords | SentColumns | DamagedRange, None, tuple[int, bool] | None]:
        """Yield the records and damaged ranges that start within a request's bounds.

        Returns:
            Physical offset after the last record, and True if the log continues there; None if
            there is no record.
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
            following = self.request(reply.next_offset, stop, reply.next_at_record)
            # No progress: the log is shorter than it was when the read was planned.
            is_stuck = following == request
            is_over = reply.next_offset >= stop or is_stuck
            if not is_over:
                # In flight while this reply is decoded.
                client.ask(following)
            # Damage only if a record must start at `position`. After a cut, skipped bytes are the
            # end of a record of the partition before.
            if reply.skipped_bytes and at_record:
                damaged_from = position
            if damaged_from is not None and (reply.next_at_record or is_over):
                yield DamagedRange(self._log, damaged_from, position + reply.skipped_bytes)
                damaged_from = None
            # The broker may have left out records; they count too.
            is_filtered = bool(self.wanted.topics)
            has_passed = reply.next_offset > position + reply.skipped_bytes
            has_records = bool(reply.frames or reply.columns)
            sees_records |= has_records or (is_filtered and has_passed)
            for columns in reply.columns:
                yield SentColumns(columns, request.columns, self.broker)
            yield from self._records(reply)
            if is_stuck:
                self._report_loss(position, stop, "the broker lost in a crash")
            if is_over:
                # Without a record, a record of an earlier partition covers this one: that partition
                # reports what follows the record.
                has_more = reply.next_at_record and reply.next_offset < reply.visible_end
                return (reply.next_offset, has_more) if sees_records else None
            request = following

    def _records(self, reply: ReadLogReply) -> Iterator[LogRecords | DamagedRange]:
        """Yield the records of a reply; records that name an impossible offset are damage."""
        # The other records of the reply leave a range of possible offsets for each record. The
        # range has one offset if no records of deleted topics were omitted.
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
        with self._client() as client:
            # Including records of deleted topics, so that the records have no gaps.
            every = replace(self, wanted=ReadLogRequest(with_deleted_topics=True))
            wanted = every.request(self.start, self.stop, self.at_record)
            client.ask(wanted)
            while True:
                reply = self._answer(client, wanted)
                following = every.request(reply.next_offset, self.stop, reply.next_at_record)
                if wanted.at_record and reply.skipped_bytes:
                    end = wanted.physical_offset + reply.skipped_bytes
                    raise LogBroken(no_record(self._log, wanted.physical_offset, end))
                is_over = reply.next_offset >= self.stop
                if following == wanted and not is_over:
                    raise LogBroken(
                        f"{self._log} lost physical offsets {reply.next_offset} to {self.stop} of "
                        "its log in a crash after this job began: run again"
                    )
                if not is_over:
                    client.ask(following)
                if reply.frames:
                    yield RecordRun(reply.frames, reply.first_offset, len(reply.frames))
                if is_over:
                    return
                wanted = following

    def following(self) -> int:
        """Return the physical offset of the next record at or after `start`; see
        `ContiguousLog`.
        """
        every = replace(self, wanted=ReadLogRequest(with_deleted_topics=True))
        wanted = every.request(self.start, self.start + 1, at_record=True, bytes_max=1)
        with self._client() as client:
            client.ask(wanted)
            reply = self._answer(client, wanted)
        has_more = bool(reply.frames or reply.skipped_bytes)
        return self.start if has_more else int(reply.next_offset)

    def _answer(self, client: LogClient, request: ReadLogRequest) -> ReadLogReply:
        """Return the broker's answer to the request that was sent; missing records are an error."""
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
            f"{what} physical offsets {start} to {end} of the log of broker {self.broker!r} after"
            " the read was planned"
        )
        report_loss(sentence, fails=self.fails_on_data_loss)


def records_of(reply: ReadLogReply, broker: str) -> Iterator[LogRecords]:
    """Yield the records of a reply in batches."""
    sizes = np.frombuffer(reply.record_lengths, "<u4").astype(np.int64)
    starts = np.cumsum(sizes) - sizes
    yield from in_batches(reply.frames, reply.first_offset, starts, sizes, broker)
