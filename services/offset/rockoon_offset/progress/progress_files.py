"""Files of progress: JSON Lines, and RocketMQ's consumerOffset.json. Pure.

Readers return one result for each entry, so that an entry that cannot be read does not cost another
one.
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

# Of a sentence about an entry.
TEXT_CHARACTERS_MAX = 400


class Entry(NamedTuple):
    """An offset from a file. Names and numbers are as the file has them, and not checked yet."""

    # A reader's name, as in the ledger.
    group: str
    queue: MessageQueue
    offset: int


class Unreadable(NamedTuple):
    """An entry of a file that is not an offset: where it is, and why."""

    place: str
    reason: str


ReadEntries = Sequence[Entry | Unreadable]


def to_json_lines(progress: Iterable[Progress]) -> bytes:
    """Return all fields of progress, one entry a line."""
    return b"".join(map(progress_to_json, progress))


def to_rocketmq(progress: Iterable[Progress], broker: str, changes: int, now_ms: int) -> bytes:
    """Return the consumerOffset.json of one broker.

    Args:
        progress: of any brokers.
        broker: name of the broker whose queues are written.
        changes: a number that grows when anything changes.
        now_ms: time of the file's version, epoch milliseconds.
    """
    offsets: dict[GroupTopic, dict[int, int]] = {}
    for entry in progress:
        if entry.queue.broker == broker:
            # A member's own becomes topic@group@member, which no group of RocketMQ's answers to.
            key = GroupTopic(entry.group, entry.queue.topic)
            offsets.setdefault(key, {})[entry.queue.queue_id] = entry.offset
    return write_consumer_offsets(ConsumerOffsets(offsets, DataVersion(changes, 0, now_ms)))


def from_json_lines(content: bytes) -> ReadEntries:
    """Read the lines of an export.

    Raises:
        InvalidArgument: no line can be read, so this is a file of another kind. Names the first.
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
    """Raises ValueError with a sentence about the line."""
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
    """Return a number, also one written as text, as JSON made from Protobuf has it."""
    value = fields[field]
    if isinstance(value, str) and value.removeprefix("-").isdecimal():
        return int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{field} is {value!r}, not a whole number")  # noqa: TRY004
    return value


def from_rocketmq(content: bytes, broker: str) -> ReadEntries:
    """Read a consumerOffset.json as RocketMQ or Rockoon wrote it.

    Raises:
        InvalidArgument: it is not one, or `broker` is empty.
    """
    if not broker:
        raise InvalidArgument(reason="consumerOffset.json does not say whose it is: name a broker")
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
    """Return text from a file as a reply can have it: without lone surrogates, and not longer than
    `TEXT_CHARACTERS_MAX` characters."""
    if len(text) > TEXT_CHARACTERS_MAX:
        text = f"{text[:TEXT_CHARACTERS_MAX]}..."
    return text.encode(errors="backslashreplace").decode()
