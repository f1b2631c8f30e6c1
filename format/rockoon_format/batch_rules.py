"""Rules of a batch: topic and queue, limits of sizes and flags, and reasons for a refusal."""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from rockoon_format.record import (
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_COMPRESSED,
    SYS_FLAG_COMPRESSION,
    SYS_FLAG_MULTI_TAGS,
)

# A transaction type would make an ordinary send a half message or a rollback; an inner batch would
# hide messages that no queue entry counts; an IPv6 store host moves the fields behind it.
SYS_FLAGS_ALLOWED = (
    SYS_FLAG_COMPRESSED | SYS_FLAG_MULTI_TAGS | SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_COMPRESSION
)
"""Flags allowed for an ordinary producer: no transaction type, inner batch or IPv6 store host."""


class BatchRules(NamedTuple):
    """Requirements for every record of a batch; the fields are those of `check_batch`."""

    topic: bytes
    queue_id: int
    body_bytes_max: int
    properties_bytes_max: int
    record_bytes_max: int
    sys_flags_allowed: int
    sources_allowed: bool
    delay_levels_ms: Sequence[int]


class BatchFault(Enum):
    """Why a batch is refused."""

    EMPTY = "empty"
    LENGTHS = "lengths"
    MAGIC = "magic"
    SIZE = "size"
    QUEUE = "queue"
    TOPIC = "topic"
    SYS_FLAG = "sys flag"
    STORE_HOST = "store host"
    BODY_TOO_LARGE = "body too large"
    PROPERTIES_TOO_LARGE = "properties too large"
    RECORD_TOO_LARGE = "record too large"
    BODY_CRC = "body crc"
    CHECKSUM = "checksum"
    DELAY_LEVEL = "delay level"
    SOURCE = "source"


class BatchError(ValueError):
    """A refused batch; `index` is the number of the first bad record, 0 for the batch itself."""

    def __init__(self, reason: BatchFault, index: int, message: str) -> None:
        super().__init__(f"record {index}: {message}")
        self.reason = reason
        self.index = index
