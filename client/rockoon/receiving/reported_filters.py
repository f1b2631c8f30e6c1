"""Filters that receivers report to the offset service, which knows all receivers of a group.

A message that a filter excludes is acknowledged, so receivers of one group with different filters
lose messages. The service compares the filters; if they differ, it replies with a text, which is
logged here.
"""

import logging
import zlib
from collections.abc import Sequence

from rockoon.subscription import Subscription
from rockoon_core.message_queue import REPORTED_FILTER_BYTES_MAX
from rockoon_core.repeated_lines import limited
from rockoon_format.names import lite_topic_of
from rockoon_proto.v1.offset_pb2 import TopicSubscription

log = limited(logging.getLogger(__name__))

REPORT_SECONDS = 10.0
LOGGED_AGAIN_SECONDS = 600.0
SENTENCES_MAX = 64
CHECKSUM_BYTES = 16


def to_report(subscriptions: Sequence[Subscription]) -> list[TopicSubscription]:
    """Return the filters of a receiver. Lite topics have no filters and are omitted."""
    return [
        TopicSubscription(topic=each.topic, expression=cut(each.expression))
        for each in subscriptions
        if lite_topic_of(each.topic) is None
    ]


def cut(expression: str) -> str:
    """Return an expression that fits a report. Different expressions stay different."""
    data = expression.encode()
    if len(data) <= REPORTED_FILTER_BYTES_MAX:
        return expression
    kept = data[: REPORTED_FILTER_BYTES_MAX - CHECKSUM_BYTES].decode(errors="ignore")
    return f"{kept}... #{zlib.crc32(data):08x}"


class FilterConflicts:
    """Logs the offset service's texts about different filters, each at most every ten minutes."""

    def __init__(self) -> None:
        # Group and sentence → loop time at which it was logged.
        self._logged: dict[tuple[str, str], float] = {}

    def log(self, group: str, sentence: str, now_seconds: float) -> None:
        """Log a text, unless it was logged recently.

        Args:
            sentence: from the offset service; empty if filters agree.
            now_seconds: monotonic.
        """
        if not sentence:
            return
        last = self._logged.get((group, sentence))
        if last is not None and now_seconds - last < LOGGED_AGAIN_SECONDS:
            return
        if len(self._logged) >= SENTENCES_MAX:
            del self._logged[next(iter(self._logged))]
        self._logged[group, sentence] = now_seconds
        log.warning("group %s: %s", group, sentence)
