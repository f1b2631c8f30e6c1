"""`rockoon produce`: sends each line as a message.

Lines are read without blocking the event loop for long. A pipe or a terminal may deliver at any
time: the event loop watches it, and each line is passed on as soon as it is complete. A file is
read in blocks, which usually come from the page cache.
"""

import asyncio
import gzip
import json
import os
import stat
import sys
import time
import zlib
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import typer

from rockoon.cli.arguments import parse_duration, parse_number, parse_time, shortened
from rockoon.cli.failures import FAILED, INTERRUPTED, CommandError
from rockoon.cli.output import picked
from rockoon.cli.session import find_topic
from rockoon.cli.watch import Interrupt

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from rockoon.cluster import Cluster
    from rockoon.producer.producer import Producer
    from rockoon.producer.receipt import Receipt

CHUNK_BYTES = 256 << 10
# Longer bodies are refused by the broker.
LINE_BYTES_MAX = 4 << 20


async def read_lines(file: Path | None) -> AsyncIterator[tuple[list[bytes], int]]:
    """Yield complete lines without their line ends.

    Args:
        file: None for standard input; a file that ends in .gz is decompressed.

    Yields:
        Some lines, and the number of bytes of the file (compressed, if it is .gz) read so far.

    Raises:
        CommandError: a line is longer than a message may be, standard input is closed, or a .gz
            file is invalid or ends early.
    """
    rest, position = b"", 0
    async for chunk, position in read_chunks(file):
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        if len(rest) > LINE_BYTES_MAX:
            raise CommandError(f"a line of more than {LINE_BYTES_MAX} bytes, without an end")
        yield [line.removesuffix(b"\r") for line in lines], position
    if rest:
        yield [rest.removesuffix(b"\r")], position


async def read_chunks(file: Path | None) -> AsyncIterator[tuple[bytes, int]]:
    if file is None and sys.stdin is None:
        raise CommandError("standard input is closed")
    if file is None and arrives_over_time(sys.stdin.fileno()):
        async for chunk in read_pipe(sys.stdin.buffer):
            yield chunk, 0
        return
    raw = sys.stdin.buffer if file is None else await asyncio.to_thread(file.open, "rb")
    try:
        packed = file is not None and file.suffix == ".gz"
        stream = gzip.GzipFile(fileobj=raw) if packed else raw
        while chunk := read_chunk(stream, file):
            yield chunk, raw.tell() if file is not None else 0
            await asyncio.sleep(0)
    finally:
        if file is not None:
            raw.close()


def read_chunk(stream: BinaryIO | gzip.GzipFile, file: Path | None) -> bytes:
    try:
        return stream.read(CHUNK_BYTES)
    except (gzip.BadGzipFile, zlib.error, EOFError) as failure:
        raise CommandError(f"cannot decompress {file}: {failure}") from None


def arrives_over_time(descriptor: int) -> bool:
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)


async def read_pipe(stream: BinaryIO) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=4 * CHUNK_BYTES)
    # Other processes may use the same terminal, so its blocking mode is restored at the end.
    blocking = os.get_blocking(stream.fileno())
    # The transport closes its descriptor; standard input must stay open until interpreter exit.
    own = os.fdopen(os.dup(stream.fileno()), "rb", buffering=0)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), own)
    try:
        while chunk := await reader.read(CHUNK_BYTES):
            yield chunk
    finally:
        os.set_blocking(stream.fileno(), blocking)
        transport.close()


# Lines between two checks of receipts. The producer's buffer bounds the messages in flight.
LINES_PER_TURN = 1_000
UNANSWERED_BYTES_MAX = 4 << 20


@dataclass(slots=True)
class Tally:
    """Counts of a `produce` run."""

    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    first_failure: str = ""
    empty_lines: int = 0
    """Number of empty lines, which are not sent."""
    trouble: str = ""
    """Why reading of the input stopped before its end; empty if it did not."""
    line_number: int = 0
    interrupted: bool = False
    seconds: float = 0.0
    waiting: "deque[Receipt]" = field(default_factory=deque)

    def to_json(self) -> dict[str, Any]:
        return {
            **picked(self, "sent", "acknowledged", "failed", "empty_lines"),
            "first_failure": self.first_failure or None,
            "trouble": self.trouble or None,
            "interrupted": self.interrupted,
            "seconds": round(self.seconds, 3),
            "messages_per_second": round(self.acknowledged / self.seconds) if self.seconds else 0,
        }

    def __str__(self) -> str:
        rate = self.acknowledged / self.seconds if self.seconds else 0.0
        text = f"{self.acknowledged} of {self.sent} messages acknowledged in {self.seconds:.2f} s"
        return f"{text} ({rate:.0f} per second)"

    @property
    def exit_status(self) -> int:
        if self.failed or self.trouble:
            return FAILED
        return INTERRUPTED if self.interrupted else 0


@dataclass(frozen=True, slots=True)
class LineMessage:
    """A message to send for one line of input; the fields are arguments of `Producer.send`."""

    body: bytes
    ordering_key: str | None = None
    keys: str | Sequence[str] | None = None
    tags: str | None = None
    properties: Mapping[str, str] | None = None

    def send(self, producer: "Producer", topic: str, delay: Mapping[str, Any]) -> "Receipt":
        return producer.send(
            topic,
            self.body,
            ordering_key=self.ordering_key,
            keys=self.keys,
            tags=self.tags,
            properties=self.properties,
            **delay,
        )


@dataclass(frozen=True, slots=True)
class LineReader:
    """Converts each line to a message.

    Args:
        key, tag: key and tag of every message; None for no key or tag.
        key_field: name of the field of the JSON object on each line that has the key; None: `key`.
        tag_field: name of the field that has the tag; None: `tag`.
        are_messages: each line is a message in the format of `rockoon consume --json`.
        delay: delay arguments of `Producer.send`.
    """

    key: str | None = None
    tag: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    key_field: str | None = None
    tag_field: str | None = None
    are_messages: bool = False
    delay: Mapping[str, Any] = field(default_factory=dict)

    def message(self, line: bytes) -> LineMessage:
        """Return the message of a line. Raises CommandError: a field is required and the line is
        not a JSON object or lacks the field. Without its key, the message would go to any queue and
        no search would find it."""
        if self.are_messages:
            return self._printed_message(json_object(line))
        key, tag = self.key, self.tag
        if self.key_field is not None or self.tag_field is not None:
            record = json_object(line)
            if self.key_field is not None:
                key = field_text(record, self.key_field)
            if self.tag_field is not None:
                tag = field_text(record, self.tag_field)
        return LineMessage(line, key, key, tag, self.properties or None)

    def _printed_message(self, record: dict[str, Any]) -> LineMessage:
        """Return a message of `consume --json`: body, keys, tags, the sender's properties."""
        from rockoon_format.properties import RESERVED_NAMES, TRANSIENT_PREFIX

        properties = record.get("properties") or {}
        keys = record.get("keys") or []
        tags = record.get("tags") or None
        are_texts = (
            isinstance(properties, dict)
            and isinstance(keys, list)
            and all(isinstance(each, str) for each in (*keys, *properties.values(), tags or ""))
        )
        if not are_texts:
            raise CommandError("keys, tags or properties are not in the format of `consume --json`")
        own = {
            name: value
            for name, value in properties.items()
            if name not in RESERVED_NAMES and not name.startswith(TRANSIENT_PREFIX)
        }
        return LineMessage(
            body_of(record),
            self.key,
            [self.key] if self.key is not None else keys or None,
            self.tag if self.tag is not None else tags,
            own | dict(self.properties) or None,
        )


def json_object(line: bytes) -> dict[str, Any]:
    """Return the JSON object on a line. Raises CommandError."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as failure:  # RecursionError: too deeply nested
        raise CommandError(f"the line is not JSON: {failure}") from None
    if not isinstance(record, dict):
        raise CommandError("the line is not a JSON object, so it has no fields")
    return record


def body_of(record: dict[str, Any]) -> bytes:
    """Return the body of a message in the format of `consume --json`. Raises CommandError."""
    text, hexadecimal = record.get("body"), record.get("body_hex")
    try:
        if isinstance(text, str):
            return text.encode()
        if isinstance(hexadecimal, str):
            return bytes.fromhex(hexadecimal)
    except ValueError as failure:
        raise CommandError(f"the body cannot be decoded: {failure}") from None
    raise CommandError(
        "the object has neither 'body' nor 'body_hex': it is not output of `consume --json`"
    )


def parse_properties(pairs: Sequence[str]) -> dict[str, str]:
    """Return the properties of `--property NAME=VALUE` options. Raises typer.BadParameter: an
    option does not have this form."""
    properties = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals and value):
            raise typer.BadParameter(f"{pair!r} is not of the form NAME=VALUE")
        properties[name] = value
    return properties


def parse_delay(delay: str | None, at: str | None) -> dict[str, Any]:
    """Return the arguments of `Producer.send` for `--delay` and `--at`. Raises typer.BadParameter:
    both are set, or one is not a valid time."""
    if delay is not None and at is not None:
        raise typer.BadParameter("use either --delay or --at")
    if at is not None:
        return {"deliver_at": parse_time(at) / 1000}
    if delay is None:
        return {}
    if delay.startswith("level:"):
        level = parse_number(delay.removeprefix("level:"))
        if not level:
            raise typer.BadParameter(f"{shortened(delay)!r} is not a delay level: write level:3")
        return {"delay_level": level}
    return {"delay_seconds": parse_duration(delay) / 1000}


def field_text(record: dict[str, Any], field: str | None) -> str | None:
    """Return a field of a JSON object as text; None if `field` is None, or the value is null or
    empty."""
    if field is None:
        return None
    if field not in record:
        raise CommandError(f"the object has no field {field!r}")
    value = record[field]
    if value is None:
        return None
    return (value if isinstance(value, str) else json.dumps(value)) or None


async def produce(
    cluster: "Cluster", topic: str, file: Path | None, reader: LineReader, *, quiet: bool
) -> Tally:
    """Send every line; Ctrl-C stops reading and waits for the receipts of sent messages.

    Args:
        topic: an existing topic.
        file: None for standard input.
        quiet: show no progress bar.
    """
    await find_topic(cluster, topic)
    tally = Tally()
    began = time.perf_counter()
    with progress_bar(file, quiet=quiet) as progress:
        async with cluster.producer() as producer:
            try:
                await send_until_interrupted(producer, topic, file, reader, tally, progress)
            except CommandError as failure:
                tally.trouble = str(failure)
            finally:
                await await_receipts(tally)
                tally.seconds = time.perf_counter() - began
    return tally


async def send_tombstones(cluster: "Cluster", topic: str, keys: Sequence[str]) -> Tally:
    """Send a tombstone (an empty message) for each key; compaction then deletes the key. Raises
    CommandError: the topic does not exist or is not compacted."""
    await find_topic(cluster, topic)
    if not (await cluster.route(topic)).compacted:
        raise CommandError(f"topic {topic} is not compacted: it has no deletion by key")
    tally = Tally()
    began = time.perf_counter()
    async with cluster.producer() as producer:
        for key in keys:
            tally.waiting.append(producer.send(topic, b"", ordering_key=key, keys=key))
            tally.sent += 1
        await await_receipts(tally)
    tally.seconds = time.perf_counter() - began
    return tally


async def send_until_interrupted(
    producer: "Producer",
    topic: str,
    file: Path | None,
    reader: LineReader,
    tally: Tally,
    progress: "Bar",
) -> None:
    async def send_all() -> None:
        async for lines, position in read_lines(file):
            for first in range(0, len(lines), LINES_PER_TURN):
                await send_some(
                    producer, topic, lines[first : first + LINES_PER_TURN], reader, tally
                )
                progress.show(tally, position)

    trouble: Sequence[BaseException] = ()
    # A second Ctrl-C ends the command immediately.
    with Interrupt() as interrupt:
        try:
            await interrupt.unless(send_all())
        except* CommandError as failures:
            # Raised below: Python before 3.11.4 would wrap it in another group here.
            trouble = failures.exceptions
        finally:
            tally.interrupted = interrupt.received
    if trouble:
        raise trouble[0] from None


async def send_some(
    producer: "Producer", topic: str, lines: list[bytes], reader: LineReader, tally: Tally
) -> None:
    from rockoon.errors import RockoonError

    unanswered_bytes = 0
    for line in lines:
        tally.line_number += 1
        if not line:
            tally.empty_lines += 1
            continue
        try:
            receipt = reader.message(line).send(producer, topic, reader.delay)
        except (CommandError, RockoonError) as error:
            raise CommandError(f"stopped at line {tally.line_number}: {error}") from None
        tally.waiting.append(receipt)
        tally.sent += 1
        unanswered_bytes += len(line)
        if unanswered_bytes > UNANSWERED_BYTES_MAX:
            unanswered_bytes = 0
            await producer.wait_capacity()
    await producer.wait_capacity()
    while tally.waiting and tally.waiting[0].done:
        await count_result(tally)


async def await_receipts(tally: Tally) -> None:
    while tally.waiting:
        await count_result(tally)


async def count_result(tally: Tally) -> None:
    """Wait for the oldest unacknowledged message and count its result."""
    from rockoon.errors import RockoonError

    receipt = tally.waiting.popleft()
    try:
        await receipt
    except RockoonError as error:
        tally.failed += 1
        tally.first_failure = tally.first_failure or str(error)
    else:
        tally.acknowledged += 1


class Bar:
    """Progress bar on standard error; without effect if it is not a terminal."""

    def __init__(self, progress: "Progress | None", total_bytes: int | None) -> None:
        self._progress = progress
        self._total = total_bytes
        self._task: TaskID | None = None

    def __enter__(self) -> "Bar":
        if self._progress is not None:
            self._progress.start()
            self._task = self._progress.add_task("sending", total=self._total, rate="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def show(self, tally: Tally, position: int) -> None:
        if self._progress is not None and self._task is not None:
            sent = f"{tally.acknowledged} acknowledged"
            self._progress.update(self._task, completed=position, rate=sent)


def progress_bar(file: Path | None, *, quiet: bool) -> Bar:
    total = file.stat().st_size if file is not None else None
    if quiet or not sys.stderr.isatty() or (file is None and sys.stdin.isatty()):
        return Bar(None, total)
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TextColumn("{task.fields[rate]}"), TimeElapsedColumn())
    return Bar(Progress(*columns, console=Console(stderr=True), transient=True), total)
