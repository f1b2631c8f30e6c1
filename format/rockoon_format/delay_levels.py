"""Delay levels, and the deliver time in the queue entry of a delayed record.

The queue entry of a record in SCHEDULE_TOPIC_XXXX with a DELAY property contains the store time
plus the delay of its level instead of the hash of the tags (CommitLog#checkMessageAndReturnSize,
MessageStoreConfig#messageDelayLevel). The entry of a record in rmq_sys_wheel_timer contains the
record's TIMER_OUT_MS. The latter is Rockoon's own: RocketMQ stores the hash of the tags and reads
every record to find its time (TimerMessageStore#enqueue). A hash is below 2^31, and a deliver time
is not, so they can be distinguished.
"""

import re
from collections.abc import Sequence

from rockoon_format.properties import PROPERTY_TIMER_OUT_MS, find_value

DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Return the delays in milliseconds of levels 1, 2, ... in a text such as `1s 5s 1m`. Raises
    ValueError: a token is not a whole number followed by one of s, m, h, d."""
    delays = []
    for token in text.split(" "):
        if not re.fullmatch(r"[0-9]{1,9}[smhd]", token):
            raise ValueError(f"{token!r} is not a delay such as 10s")
        delays.append(int(token[:-1]) * _UNIT_MS[token[-1]])
    return tuple(delays)


DELAY_LEVELS_MS = parse_delay_levels(DELAY_LEVELS)
DELAY_LEVEL_MAX = len(DELAY_LEVELS_MS)


def parse_java_int(text: str) -> int:
    """Read a number as Java's Integer.parseInt does. Raises ValueError: not an optional sign and
    digits, or outside 32 bits. A RocketMQ broker treats a delayed record with such a text, and all
    later records, as damaged."""
    if not re.fullmatch(r"[+-]?\d+", text):
        raise ValueError(f"{text!r} is not a number")
    number = int(text)
    if not -(2**31) <= number < 2**31:
        raise ValueError(f"{text!r} does not fit in 32 bits")
    return number


DELIVER_TIME_MS_MIN = 2**32
"""A ConsumeQueue's tags code of at least this value is a deliver time; below it is a hash."""


def timer_deliver_ms(properties: bytes) -> int | None:
    """Deliver time in epoch milliseconds of a record of rmq_sys_wheel_timer; None if it has none.
    `properties`: the record's encoded properties."""
    text = find_value(properties, PROPERTY_TIMER_OUT_MS)
    if text is None or not re.fullmatch(r"[0-9]{1,18}", text):
        return None
    deliver_ms = int(text)
    return deliver_ms if deliver_ms >= DELIVER_TIME_MS_MIN else None


def delay_of_level_ms(level: int, delay_levels_ms: Sequence[int] = DELAY_LEVELS_MS) -> int:
    """Return a level's delay in milliseconds, 0 for none; levels above the last are the last."""
    if level <= 0:
        return 0
    return delay_levels_ms[min(level, len(delay_levels_ms)) - 1]
