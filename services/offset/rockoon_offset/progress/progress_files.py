"""Files of progress: JSON Lines, and RocketMQ's consumerOffset.json. Pure.

The read functions return one result for each entry, so an invalid entry does not affect the other
entries.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from rockoon_core.errors import InvalidArgument
from rockoon_core.message_queue import MessageQueue
from rockoon_format.config_json import (
    ConfigError,
    ConsumerOffsets,
    DataVersion,
    GroupTopic,
    read_consumer_offsets,
    write_consumer_offsets,
)
from rockoon_offset.progress.readers import reader_of
from rockoon_offset.progress.records import Progress
from rockoon_offset.wire import progress_to_json

# Length of a text about one entry.
TEXT_CHARACTERS_MAX = 400


class Entry(NamedTuple):
    """An offset from a file. Names and numbers are not checked yet."""

    # Name of the reader, as in the ledger.
    group: str
    queue: MessageQueue
    offset: int


class Unreadable(NamedTuple):
    """An invalid entry of a file: its position in the file, and the reason."""

    place: str
    reason: str


ReadEntries = Sequence[Entry | Unreadable]


def to_json_lines(progress: Iterable[Progress]) -> bytes:
    """Return all fields of progress, one entry a line."""
    return b"".join(map(progress_to_json, progress))


def to_rocketmq(progress: Iterable[Progress], broker: str, changes: int, now_ms: int) -> bytes:
    """Return the consumerOffset.json of one broker.

    Args:
        changes: number that grows with each change of progress.
        now_ms: time of the file's version, epoch milliseconds.
    """
    offsets: dict[GroupTopic, dict[int, int]] = {}
    for entry in progress:
        if entry.queue.broker == broker:
            # A member's own progress gets the key topic@group@member, which matches no group of
            # RocketMQ.
            key = GroupTopic(entry.group, entry.queue.topic)
            offsets.setdefault(key, {})[entry.queue.queue_id] = entry.offset
    return write_consumer_offsets(ConsumerOffsets(offsets, DataVersion(changes, 0, now_ms)))


def from_json_lines(content: bytes) -> ReadEntries:
    """Read the lines of an export.

    Raises:
        InvalidArgument: no line is valid, so the file is probably no export. The text has the fault
            of the first line.
    """
    found: list[Entry | Unreadable] = []
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            found.append(_entry_of(line))
        except ValueError as fault:
            found.append(Unreadable(f"line {number}", str(fault)))
    if found and all(isinstance(each, Unreadable) for each in found):
        place, reason = found[0][:2]
        raise InvalidArgument(reason=printable(f"{place} is no progress: {reason}"))
    return found


def _entry_of(line: bytes) -> Entry:
    """Parse one line of an export. Raises ValueError with a text about the line."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as fault:
        # RecursionError: thousands of nested brackets.
        raise ValueError(f"it is not JSON: {fault}") from fault
    if not isinstance(fields, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - one kind for every fault
    wanted = ("group", "topic", "broker", "queue_id", "offset")
    if absent := [name for name in wanted if name not in fields]:
        raise ValueError(f"it has no {', '.join(absent)}")
    group, topic, broker = (_name_in(fields, name) for name in wanted[:3])
    queue_id, offset = (_number_in(fields, name) for name in wanted[3:])
    member = _name_in(fields, "member") if fields.get("member") else ""
    return Entry(reader_of(group, member), MessageQueue(topic, broker, queue_id), offset)


def _name_in(fields: dict[str, Any], field: str) -> str:
    value = fields[field]
    if not isinstance(value, str):
        raise ValueError(f"{field} is {value!r}, not a name")  # noqa: TRY004
    return value


def _number_in(fields: dict[str, Any], field: str) -> int:
    """Return a number; text is accepted too, as in JSON made from Protobuf."""
    value = fields[field]
    if isinstance(value, str) and value.removeprefix("-").isdecimal():
        return int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{field} is {value!r}, not a whole number")  # noqa: TRY004
    return value


def from_rocketmq(content: bytes, broker: str) -> ReadEntries:
    """Read a consumerOffset.json as RocketMQ or Rockoon wrote it. Raises InvalidArgument: the
    content is no consumerOffset.json, or `broker` is empty."""
    if not broker:
        raise InvalidArgument(reason="consumerOffset.json does not name its broker: name a broker")
    try:
        table = read_consumer_offsets(content)
    except ConfigError as failure:
        raise InvalidArgument(
            reason=printable(f"not a consumerOffset.json: {failure}")
        ) from failure
    entries = [
        Entry(group, MessageQueue(topic, broker, queue_id), offset)
        for (group, topic), queues in table.offsets.items()
        for queue_id, offset in queues.items()
    ]
    return [*entries, *(Unreadable(fault.place, fault.reason) for fault in table.faults)]


def printable(text: str) -> str:
    """Make text from a file valid for a reply: without lone surrogates, and at most
    `TEXT_CHARACTERS_MAX` characters long."""
    if len(text) > TEXT_CHARACTERS_MAX:
        text = f"{text[:TEXT_CHARACTERS_MAX]}..."
    return text.encode(errors="backslashreplace").decode()
