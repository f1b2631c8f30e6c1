"""Parses points in time, in ISO 8601 and in RocketMQ's format."""

import datetime
import re

_ROCKETMQ_FORMAT = "%Y%m%d%H%M%S"


def timestamp_ms_of(text: str) -> int:
    """Return epoch milliseconds.

    Args:
        text: "20260131120000" (RocketMQ's yyyyMMddHHmmss, local time); ISO 8601 as in
            "2026-01-31T12:00", "2026-01-31 12:00:00+01:00" or with Z, local without a zone; or
            epoch milliseconds of 11 to 13 digits.

    Raises:
        ValueError: the text has none of these forms, or the date does not exist.
    """
    if re.fullmatch(r"\d{14}", text):
        moment = datetime.datetime.strptime(text, _ROCKETMQ_FORMAT)
    elif re.fullmatch(r"\d{11,13}", text):
        return int(text)
    else:
        moment = datetime.datetime.fromisoformat(text)
    return int(moment.timestamp() * 1000)
