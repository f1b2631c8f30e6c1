"""Reset targets: parses the target options of `rockoon offsets reset`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rockoon.cli.arguments import parse_duration, parse_time
from rockoon.cli.failures import CommandError

if TYPE_CHECKING:
    from rockoon_proto.v1.offset_pb2 import QueueOffset, ResetTarget

OPTIONS = (
    "--to-earliest, --to-latest, --to-offset, --to-time, --shift, --by-duration or --from-file"
)


def read_target(
    topic: str,
    *,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_time: str | None,
    shift: int | None,
    by_duration: str | None,
    from_file: Path | None,
) -> "ResetTarget":
    """Return the target of a reset; exactly one option must be set.

    Raises:
        typer.BadParameter: none or several are set, or a value is invalid.
        CommandError: the file is invalid.
    """
    from rockoon_proto.v1.offset_pb2 import QueueOffsets, ResetTarget

    # Options that are not set are False or None; 0 is an offset.
    values = (to_offset, to_time, shift, by_duration, from_file)
    if to_earliest + to_latest + sum(value is not None for value in values) != 1:
        raise typer.BadParameter(f"set the target with one of {OPTIONS}")
    if to_earliest:
        return ResetTarget(earliest=True)
    if to_latest:
        return ResetTarget(latest=True)
    if to_offset is not None:
        if to_offset < 0:
            raise typer.BadParameter("an offset must be 0 or more", param_hint="--to-offset")
        return ResetTarget(offset=to_offset)
    if to_time is not None:
        return ResetTarget(timestamp_ms=parse_time(to_time))
    if shift is not None:
        return ResetTarget(shift=shift)
    if by_duration is not None:
        return ResetTarget(duration_ms=parse_duration(by_duration))
    assert from_file is not None
    return ResetTarget(offsets=QueueOffsets(offsets=read_offsets(from_file, topic)))


def read_offsets(file: Path, topic: str) -> "list[QueueOffset]":
    """Return the offsets of a topic from a JSON Lines file in the format of `offsets export`.

    Raises:
        CommandError: a line is invalid, or no line is about the topic.
    """
    from rockoon_proto.v1.offset_pb2 import QueueOffset, QueueRef

    found: list[QueueOffset] = []
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            entry_queue = entry.get("queue", entry)
            queue = QueueRef(
                topic=entry_queue["topic"],
                broker=entry_queue["broker"],
                queue_id=whole_number(entry_queue["queue_id"]),
            )
            wanted = QueueOffset(queue=queue, offset=whole_number(entry["offset"]))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise CommandError(
                f'{file}, line {number}: not of the form {{"topic": "{topic}", '
                '"broker": "broker-a", "queue_id": 0, "offset": 42}'
            ) from None
        if queue.topic == topic:
            found.append(wanted)
    if not found:
        raise CommandError(f"{file} has no offset of topic {topic}")
    return found


def whole_number(value: Any) -> int:
    """Return an integer that may be written as text.

    Raises:
        ValueError: the value has a fraction or is not a number.
    """
    if isinstance(value, bool | float):
        raise ValueError(f"{value!r} is not a whole number")  # noqa: TRY004 - as int() raises
    return int(value)
