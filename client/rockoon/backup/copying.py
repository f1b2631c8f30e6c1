"""Copy of the log of one broker, from a running cluster.

Records of a log never change. So a backup copies the records after those of former backups, and
refers to the files with the earlier ones. Before that, it asks the broker for the last record of
these files: the broker may have lost its disk and have begun another log of the same name.
"""

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from rockoon.backup.destination import BackupError, Destination
from rockoon.backup.manifest import LOGS, BackupFile, LogBackup, LogPart
from rockoon.errors import GenerationNotFound, InvalidOffset, LogTrimmed
from rockoon.net.retried import retried
from rockoon_core.clock import wall_clock_ms
from rockoon_format.generation import (
    CURRENT_FILE,
    GENERATIONS_DIRECTORY,
    MANIFEST_FILE,
    Manifest,
    encode_current,
    generation_name,
)
from rockoon_format.scan import scan
from rockoon_proto.v1.broker_pb2 import (
    DescribeCompactionReply,
    DescribeCompactionRequest,
    ReadGenerationRequest,
    ReadLogReply,
    ReadLogRequest,
)

if TYPE_CHECKING:
    from rockoon.net.connection import Connection

READ_BYTES = 4 << 20
# A broker with `flush = async` syncs within a second, unless its disk is busy.
DURABLE_SECONDS_MAX = 60.0
DURABLE_CHECK_SECONDS = 0.2
CUT_ATTEMPTS_MAX = 5
CUT_PAUSE_SECONDS = 1.0


class Pace:
    """Limits the bytes that are read per second. `bytes_per_second`: 0: no limit."""

    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._began = time.monotonic()
        self._bytes = 0

    async def spend(self, count: int) -> None:
        """Wait until `count` more bytes are within the limit."""
        self._bytes += count
        if self._bytes_per_second:
            due = self._began + self._bytes / self._bytes_per_second
            await asyncio.sleep(max(0.0, due - time.monotonic()))


class SourceLog:
    """Reads the log of one broker; follows its leader."""

    def __init__(self, connection: "Connection", name: str) -> None:
        self._connection = connection
        self.name = name

    async def call(self, method: str, request: Any) -> Any:
        """Call the broker, and retry while another leader is elected."""
        call = partial(self._connection.call_broker, self.name, method, request)
        return await retried(call, self._connection.retry_seconds)

    async def ends(self) -> ReadLogReply:
        """Return the ends of the log and of its queues."""
        reply: ReadLogReply = await self.call("ReadLog", ReadLogRequest(with_queue_ends=True))
        return reply

    async def described(self, log_end: int = 0) -> DescribeCompactionReply:
        """Return the compaction of the log, and the last bytes before a physical offset; 0: before
        the end."""
        reply: DescribeCompactionReply = await self.call(
            "DescribeCompaction", DescribeCompactionRequest(log_end=log_end)
        )
        return reply

    async def read(self, position: int, end: int, bytes_max: int = READ_BYTES) -> ReadLogReply:
        """Return records that begin in a range, which begins with a record."""
        reply: ReadLogReply = await self.call(
            "ReadLog",
            ReadLogRequest(
                physical_offset=position,
                at_record=True,
                end_offset=end,
                max_bytes=bytes_max,
                with_deleted_topics=True,
            ),
        )
        return reply

    async def has(self, part: LogPart) -> bool:
        """True if the log has the last record of a part."""
        start = part.end - part.last_bytes
        try:
            reply = await self.read(start, start + 1)
        except LogTrimmed:
            return False
        return hashlib.sha256(reply.frames).hexdigest() == part.last_sha256


def damage_in(reply: ReadLogReply, position: int) -> int | None:
    """Return where a reply has damaged bytes; None if it has none. The broker does not compare
    bodies with their checksums.

    Only bodies are compared, as by a start without a recovery point: RocketMQ copies the checksum
    of a whole record to records that it derives. `reply`: records, of a read from `position`.
    """
    if reply.skipped_bytes:
        return position
    records = len(reply.record_lengths) // 4
    whole = scan(
        reply.frames,
        0,
        len(reply.frames),
        checksums=False,
        with_tag_codes=False,
        records_max=records + 1,
    ).position
    return None if whole == len(reply.frames) else reply.first_offset + whole


class LogPartWriter:
    """A file with records of one CommitLog file, which is being written. `start`: physical offset
    of the first record."""

    def __init__(self, destination: Destination, log: str, start: int) -> None:
        self.start = self.end = start
        self._log = log
        # The end is not known yet. The random number distinguishes logs with the same name.
        self._name = f"{LOGS}/{log}/{start:020d}-{secrets.token_hex(4)}"
        self._hash = hashlib.sha256()
        self._last = b""
        self._opened: AbstractContextManager[Any] = destination.writer(self._name)
        self._file = self._opened.__enter__()

    def add(self, reply: ReadLogReply) -> None:
        self._file.write(reply.frames)
        self._hash.update(reply.frames)
        self.end += len(reply.frames)
        self._last = reply.frames[-int.from_bytes(reply.record_lengths[-4:], "little") :]

    def finish(self) -> LogPart:
        self._opened.__exit__(None, None, None)
        file = BackupFile(self._name, self.end - self.start, self._hash.hexdigest())
        last = hashlib.sha256(self._last).hexdigest()
        return LogPart(file, self.start, self.end, len(self._last), last)

    def discard(self, failure: BaseException) -> None:
        self._opened.__exit__(type(failure), failure, failure.__traceback__)


class LogCopier:
    """Copies one log. `on_parts`: called with all parts of the log so far, whenever there is
    another one."""

    def __init__(
        self,
        reader: SourceLog,
        destination: Destination,
        backup: str,
        pace: Pace,
        on_parts: Callable[[str, Sequence[LogPart]], None],
    ) -> None:
        self._reader = reader
        self._destination = destination
        self._backup = backup
        self._pace = pace
        self._on_parts = on_parts

    async def cut(self) -> None:
        """Fix the cut: the end of the log, and of all its queues at that moment. Raises
        BackupError: the log, its generation or its marks of deleted topics keep changing."""
        for attempt in range(CUT_ATTEMPTS_MAX):
            if attempt:
                await asyncio.sleep(CUT_PAUSE_SECONDS)
            # Before the cut: the generation covers a part of the log before it.
            self._compaction = await self._reader.described()
            self._ends = await self._reader.ends()
            self._cut_ms = wall_clock_ms()
            # If a later generation had become active, retention might have deleted messages before
            # the cut that only this generation has.
            if await self._is_same_log(same_generation=True):
                return
        raise BackupError(
            f"the log of {self._reader.name} changed in each of {CUT_ATTEMPTS_MAX} attempts to fix "
            "its end: by compactions, by deletions of topics, or because another log replaced it; "
            "run the backup again when these have ended"
        )

    async def _is_same_log(self, *, same_generation: bool = False) -> bool:
        """True if the log still has the last records before the cut. `same_generation`: and still
        has the generation and its marks."""
        former = self._compaction
        found = await self._described_at_cut()
        if found is None:
            return False
        # If no record was synced at the cut, the reply above is about the present end.
        return (not former.log_end or found.log_tail == former.log_tail) and (
            not same_generation
            or (found.manifest == former.manifest and found.dropped == former.dropped)
        )

    async def _described_at_cut(self) -> DescribeCompactionReply | None:
        """Return the compaction, and the last bytes before the cut; None if the log has no record
        there."""
        end = self._compaction.log_end
        with suppress(InvalidOffset):
            return await self._reader.described(end)
        # A new leader may not have listed and synced all records yet.
        if await self._wait_durable() >= self._ends.visible_end:
            with suppress(InvalidOffset):
                return await self._reader.described(end)
        return None

    async def copy(self, known: Sequence[Sequence[LogPart]], files: Mapping[str, int]) -> LogBackup:
        """Copy the log up to the cut.

        Args:
            known: parts of this log in former backups, the newest backup first.
            files: names and sizes of the destination's files.

        Raises:
            BackupError: the log is damaged, has become shorter or was replaced, or a compaction or
                retention was faster.
        """
        ends = self._ends
        begin = ends.log_min_offset
        if (end := await self._wait_durable()) < ends.visible_end:
            raise self._shorter(end)
        generation = await self._copy_generation()
        parts = await self._reused(begin, known, files)
        position = parts[-1].end if parts else begin
        writer: LogPartWriter | None = None
        try:
            while position < ends.visible_end:
                try:
                    reply = await self._reader.read(position, ends.visible_end)
                except LogTrimmed as trimmed:
                    # Retention was faster. Files before the gap are of no use.
                    begin = position = int(trimmed.details["log_min_offset"])
                    parts = []
                    if writer is not None:
                        self._destination.remove(writer.finish().file.name)
                        writer = None
                    continue
                if (damaged_at := damage_in(reply, position)) is not None:
                    raise BackupError(
                        f"the log of {self._reader.name} is damaged at {damaged_at}: repair it "
                        "from another copy (docs/operate/logs.md), or leave the broker out: "
                        f"--without {self._reader.name}"
                    )
                if reply.frames:
                    if writer is not None and (
                        reply.first_offset != writer.end
                        or reply.first_offset % ends.log_file_bytes == 0
                    ):
                        parts.append(writer.finish())
                        writer = None
                        await self._record(parts)
                    writer = writer or LogPartWriter(
                        self._destination, self._reader.name, reply.first_offset
                    )
                    writer.add(reply)
                    await self._pace.spend(len(reply.frames))
                if reply.next_offset == position:
                    raise self._shorter(reply.visible_end)
                position = reply.next_offset
            if writer is not None:
                parts.append(writer.finish())
        except BaseException as failure:
            if writer is not None:
                writer.discard(failure)
            raise
        await self._record(parts)
        await self._check_generation(begin)
        return self._result(begin, parts, generation)

    async def _record(self, parts: Sequence[LogPart]) -> None:
        """Report the parts so far. Before that, compare the logs: a later backup checks the last
        part only."""
        if not await self._is_same_log():
            raise BackupError(
                f"another log has replaced the log of {self._reader.name} during the backup, or "
                "retention has deleted all records before the cut: run the backup again"
            )
        self._on_parts(self._reader.name, parts)

    async def _wait_durable(self) -> int:
        """Wait until the cut is durable. Otherwise a crash of the broker's machine may remove
        records before the cut, and the copy would mix them with the records that replace them.
        Returns the end of the log: before the cut if the log has lost records."""
        deadline = time.monotonic() + DURABLE_SECONDS_MAX
        while True:
            reply = await self._reader.ends()
            cut = self._ends.visible_end
            if reply.visible_end < cut or reply.durable_end >= cut:
                return reply.visible_end
            if time.monotonic() > deadline:
                raise BackupError(
                    f"{self._reader.name} has not synced its log up to {self._ends.visible_end} "
                    f"within {DURABLE_SECONDS_MAX:.0f} s: look at its disk, and run the backup "
                    "again"
                )
            await asyncio.sleep(DURABLE_CHECK_SECONDS)

    def _shorter(self, end: int) -> BackupError:
        return BackupError(
            f"the log of {self._reader.name} ends at {end}, and ended at "
            f"{self._ends.visible_end} at the cut: it has lost records during the backup; run the "
            "backup again"
        )

    async def _reused(
        self, begin: int, known: Sequence[Sequence[LogPart]], files: Mapping[str, int]
    ) -> list[LogPart]:
        """Return the longest run of known parts that the log has, from its beginning on."""
        best: list[LogPart] = []
        for former in known:
            run: list[LogPart] = []
            for part in former:
                if part.start < begin or part.end > self._ends.visible_end:
                    continue
                follows = self._follows(run[-1].end if run else begin, part.start)
                if not follows or files.get(part.file.name) != part.file.bytes:
                    break
                run.append(part)
            while len(run) > len(best) and not await self._reader.has(run[-1]):
                run.pop()
            if len(run) > len(best):
                best = run
        return best

    def _follows(self, end: int, start: int) -> bool:
        """True if no records can be between two positions of the log."""
        file_bytes = self._ends.log_file_bytes
        return end == start or (
            start % file_bytes == 0 and end // file_bytes + 1 == start // file_bytes
        )

    async def _copy_generation(self) -> dict[str, BackupFile]:
        if not self._compaction.manifest:
            return {}
        manifest = Manifest.from_json(self._compaction.manifest)
        directory = f"{GENERATIONS_DIRECTORY}/{generation_name(manifest.generation)}"
        current = f"{GENERATIONS_DIRECTORY}/{CURRENT_FILE}"
        found = {
            f"{directory}/{MANIFEST_FILE}": self._stored(
                f"{directory}/{MANIFEST_FILE}", self._compaction.manifest
            ),
            current: self._stored(current, encode_current(manifest.generation)),
        }
        for part in manifest.parts:
            for file in part.files:
                place = f"{directory}/{file.name}"
                found[place] = await self._copied(place, manifest.generation, file.name)
                if found[place].sha256 != file.sha256:
                    raise BackupError(
                        f"{file.name} of generation {manifest.generation} of {self._reader.name} "
                        "is damaged: run the compaction again (docs/use/spark.md)"
                    )
        return found

    def _place(self, name: str) -> str:
        return f"{self._backup}/{self._reader.name}/{name}"

    def _stored(self, name: str, content: bytes) -> BackupFile:
        self._destination.write(self._place(name), content)
        return BackupFile(self._place(name), len(content), hashlib.sha256(content).hexdigest())

    async def _copied(self, place: str, generation: int, name: str) -> BackupFile:
        digest, at = hashlib.sha256(), 0
        with self._destination.writer(self._place(place)) as file:
            while True:
                request = ReadGenerationRequest(
                    generation=generation, file_name=name, offset=at, max_bytes=READ_BYTES
                )
                try:
                    reply = await self._reader.call("ReadGeneration", request)
                except GenerationNotFound as failure:
                    raise self._overtaken("a compaction has replaced a generation") from failure
                file.write(reply.data)
                digest.update(reply.data)
                at += len(reply.data)
                await self._pace.spend(len(reply.data))
                if at >= reply.file_bytes:
                    return BackupFile(self._place(place), at, digest.hexdigest())

    async def _check_generation(self, begin: int) -> None:
        """Raise BackupError if retention has deleted messages before `begin` that only a
        generation later than the cut has."""
        if self._ends.log_min_offset == begin:
            return
        if self._compaction.manifest:
            covered = Manifest.from_json(self._compaction.manifest).log_end
        else:
            # Without a generation, retention deletes no message of a compacted topic.
            found = await self._reader.described()
            covered = 0 if found.manifest else begin
        if covered < begin:
            raise self._overtaken("retention has deleted compacted messages")

    def _overtaken(self, what: str) -> BackupError:
        return BackupError(
            f"{what} of {self._reader.name} during the backup: run it again; it uses the files "
            "that are complete"
        )

    def _result(
        self, begin: int, parts: Sequence[LogPart], generation: Mapping[str, BackupFile]
    ) -> LogBackup:
        ends, compaction = self._ends, self._compaction
        dropped = {each.topic: each.dropped_below for each in ends.dropped}
        return LogBackup(
            name=self._reader.name,
            file_bytes=ends.log_file_bytes,
            begin=begin,
            end=ends.visible_end,
            cut_ms=self._cut_ms,
            parts=parts,
            queues={
                each.topic: list(zip(each.queue_ids, each.end_offsets, strict=True))
                for each in ends.queue_ends
            },
            dropped=dropped,
            overtaken={
                each.topic: each.dropped_below
                for each in compaction.dropped
                if each.dropped_below > dropped.get(each.topic, 0)
            },
            generation=Manifest.from_json(compaction.manifest).generation
            if compaction.manifest
            else 0,
            generation_files=generation,
        )
