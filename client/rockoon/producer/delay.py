"""Delays of messages, encoded as properties for the broker.

A message has at most one of these arguments:

- `delay_level`: delay by a level from 1: 1s 5s 10s 30s 1m 2m ... 2h;
- `delay_seconds`: delay after the broker has stored the message;
- `deliver_at`: time of delivery, a datetime with a time zone, or epoch seconds.

Delayed messages have no order, and even an idempotent producer can store one twice. The
`offset_message_id` of its result cancels it.
"""

import datetime
import math

from rockoon.errors import InvalidArgument, InvalidDelay
from rockoon_format.properties import (
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELIVER_MS,
)

SECONDS_MAX = 10**9
LEVEL_MAX = 10**6


def delay_section(
    delay_level: int | None,
    delay_seconds: float | None,
    deliver_at: datetime.datetime | float | None,
) -> bytes:
    """Return the encoded property of a delay.

    Args:
        delay_level: from 1; index in the broker's `delay_levels`, a higher one means the last.
        delay_seconds: seconds after the broker has stored it, rounded up to milliseconds.
        deliver_at: a datetime with a time zone, or epoch seconds.

    Raises:
        InvalidArgument: none or more than one of the three is given.
        InvalidDelay: the value has a wrong type or is out of its bounds.
    """
    given = [delay_level is not None, delay_seconds is not None, deliver_at is not None]
    if sum(given) != 1:
        raise InvalidArgument(reason="give one of delay_level, delay_seconds and deliver_at")
    if delay_level is not None:
        if type(delay_level) is not int or not 1 <= delay_level <= LEVEL_MAX:
            raise _invalid(f"a delay level is a number from 1, not {delay_level!r}")
        return _section(PROPERTY_DELAY_TIME_LEVEL, delay_level)
    if delay_seconds is not None:
        return _section(PROPERTY_TIMER_DELAY_MS, _milliseconds(delay_seconds, "delay_seconds"))
    if isinstance(deliver_at, datetime.datetime):
        if deliver_at.tzinfo is None:
            raise _invalid(f"deliver_at {deliver_at} has no time zone")
        deliver_at = deliver_at.timestamp()
    if deliver_at is not None and isinstance(deliver_at, int | float) and deliver_at > SECONDS_MAX:
        if deliver_at > 100 * SECONDS_MAX:
            raise _invalid(f"deliver_at is {deliver_at!r}: it must be epoch seconds")
        return _section(PROPERTY_TIMER_DELIVER_MS, math.ceil(deliver_at * 1000))
    return _section(PROPERTY_TIMER_DELIVER_MS, _milliseconds(deliver_at, "deliver_at"))


def _milliseconds(seconds: object, name: str) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise _invalid(f"{name} is a number of seconds, not {seconds!r}")
    if not 0 <= seconds <= SECONDS_MAX:
        raise _invalid(f"{name} is {seconds!r}, not a number of seconds from 0")
    return math.ceil(seconds * 1000)


def _section(name: str, value: int) -> bytes:
    return f"{name}\x01{value}\x02".encode()


def _invalid(reason: str) -> InvalidDelay:
    return InvalidDelay(index=0, reason=reason)
