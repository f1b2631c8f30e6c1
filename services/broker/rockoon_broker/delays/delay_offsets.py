"""RocketMQ's files about delivered delayed messages.

`config/delayOffset.json` holds one offset per level, below which everything is delivered. It is
kept up to date for RocketMQ, and read at each start because RocketMQ may have used the store since.

`config/timercheck` begins with the time up to which RocketMQ's timer has delivered, the end of its
timer log, and the offset in rmq_sys_wheel_timer up to which the timer has read: i64 big-endian
each. It is only read. Source: ScheduleMessageService, TimerCheckpoint.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rockoon_broker.config_files import read_config
from rockoon_broker.store.errors import StoreLayoutError
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_format.config_json import (
    ConfigError,
    DataVersion,
    DelayOffsets,
    read_delay_offsets,
    write_delay_offsets,
)
from rockoon_format.names import SCHEDULE_TOPIC

FILE = "delayOffset.json"
TIMER_FILE = "timercheck"
_TIMER_CHECKPOINT = struct.Struct(">qqq")


@dataclass(frozen=True, slots=True)
class TimerCheckpoint:
    """Progress of RocketMQ's timer: it delivered messages below `known_below` due by the given
    time."""

    delivered_until_ms: int = 0
    """Epoch milliseconds."""
    known_below: int = 0
    """Queue offset in rmq_sys_wheel_timer."""


def read_timer_checkpoint(config: Path) -> TimerCheckpoint:
    """Read RocketMQ's timer checkpoint in a store's config directory; zeros without one. Raises
    StoreLayoutError: the file is too short."""
    path = config / TIMER_FILE
    if not path.exists():
        return TimerCheckpoint()
    content = path.read_bytes()
    if len(content) < _TIMER_CHECKPOINT.size:
        raise StoreLayoutError(f"{path} has only {len(content)} bytes")
    delivered_until_ms, _, known_below = _TIMER_CHECKPOINT.unpack_from(content)
    return TimerCheckpoint(delivered_until_ms, known_below)


class DelayOffsetFile:
    """The delay offset file and its last version."""

    def __init__(self, config: Path, now_ms: Callable[[], int]) -> None:
        self._path = config / FILE
        self._now_ms = now_ms
        self._counter = 0

    def read(self) -> dict[QueueKey, int]:
        """Return offsets per level queue below which messages were delivered; empty without a file.

        Raises:
            StoreLayoutError: it cannot be read. A guess could deliver messages again.
        """
        content = read_config(self._path)
        if content is None:
            return {}
        try:
            found = read_delay_offsets(content)
        except ConfigError as failure:
            raise StoreLayoutError(f"{self._path} cannot be read: {failure}") from failure
        self._counter = found.data_version.counter
        return {(SCHEDULE_TOPIC, level - 1): offset for level, offset in found.offsets.items()}

    def content(self, low_waters: Mapping[QueueKey, int]) -> tuple[Path, bytes]:
        """Return the file's path and its new content, from the low waters of all queues."""
        self._counter += 1
        offsets = {
            queue_id + 1: offset
            for (topic, queue_id), offset in low_waters.items()
            if topic == SCHEDULE_TOPIC and offset
        }
        version = DataVersion(self._counter, 0, self._now_ms())
        return self._path, write_delay_offsets(DelayOffsets(offsets, version))
