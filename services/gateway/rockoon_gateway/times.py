"""Times of requests, checked. Pure.

A time on the wire is two integers, and a caller may send any. Each time of a request is read here,
so that each has a range, and a time out of range is a Refusal.
"""

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from rockoon_gateway.codes import Refusal
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code

EPOCH_SECONDS_MAX = 253_402_300_799
"""The last second of the year 9999: the protocol's times end there."""
EPOCH_MS_MAX = EPOCH_SECONDS_MAX * 1000 + 999
DURATION_SECONDS_MAX = 315_576_000_000
"""The longest duration of the protocol, in either direction: about 10,000 years."""
_NANOS = 1_000_000_000


def epoch_ms(time: Timestamp, name: str, code: Code = Code.BAD_REQUEST) -> int:
    """Return a time as epoch milliseconds.

    Args:
        time: from a request.
        name: of the field, for the text of the refusal.
        code: of the refusal.

    Raises:
        Refusal: the time is before 1970 or after the year 9999, or its nanoseconds are not within a
            second.
    """
    seconds, nanos = time.seconds, time.nanos
    if not (0 <= seconds <= EPOCH_SECONDS_MAX and 0 <= nanos < _NANOS):
        raise Refusal(
            code, f"{name} is {seconds} s and {nanos} ns, not a time of the years 1970 to 9999"
        )
    return seconds * 1000 + nanos // 1_000_000


def checked_epoch_ms(time_ms: int, name: str) -> int:
    """Return a time that a request has in epoch milliseconds; raises Refusal: BAD_REQUEST, if
    `epoch_ms` would refuse it."""
    if not 0 <= time_ms <= EPOCH_MS_MAX:
        raise Refusal(
            Code.BAD_REQUEST, f"{name} is {time_ms} ms, not a time of the years 1970 to 9999"
        )
    return time_ms


def duration_ms(duration: Duration, name: str, code: Code = Code.BAD_REQUEST) -> int:
    """Return a duration in milliseconds, rounded towards zero; it may be negative.

    Args:
        duration: from a request.
        name: of the field, for the text of the refusal.
        code: of the refusal.

    Raises:
        Refusal: it is longer than the protocol's longest one, its nanoseconds are not within a
            second, or their sign differs from that of the seconds.
    """
    seconds, nanos = duration.seconds, duration.nanos
    is_in_range = abs(seconds) <= DURATION_SECONDS_MAX and abs(nanos) < _NANOS
    if not is_in_range or (seconds < 0 < nanos) or (nanos < 0 < seconds):
        raise Refusal(code, f"{name} is {seconds} s and {nanos} ns, which is not a duration")
    return seconds * 1000 + (nanos // 1_000_000 if nanos >= 0 else -(-nanos // 1_000_000))
