"""Refused calls: errors, counts by reason, and log lines."""

import logging
from collections.abc import Callable

from rockoon_core.errors import NotAuthenticated, NotPermitted

log = logging.getLogger(__name__)

# The caller receives each refusal; the log shows one per interval.
LOGGED_SECONDS = 1.0

REASONS = ("no key", "unknown key", "disabled key", "wrong signature", "stale", "replayed")


def refused(kind: str, reason: str, **details: object) -> NotAuthenticated:
    """The error of a call that is not authenticated; its kind is one of REASONS."""
    return NotAuthenticated(reason=reason, kind=kind, **details)


class Refusals:
    """Counts the refused calls of a gate, and logs at most one per interval.

    Args:
        clock: epoch milliseconds, never decreasing.

    Attributes:
        counts: number of refused calls by reason.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self.counts: dict[str, int] = dict.fromkeys((*REASONS, "not permitted"), 0)
        self._clock = clock
        self._logged_ms = 0

    def record(self, method: str, refusal: NotAuthenticated | NotPermitted) -> None:
        self.counts[refusal.details.get("kind", "not permitted")] += 1
        now_ms = self._clock()
        if now_ms - self._logged_ms >= LOGGED_SECONDS * 1000:
            self._logged_ms = now_ms
            log.warning("%s was refused: %s", method, refusal)
