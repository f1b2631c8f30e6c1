"""Refusals of calls: errors, counts of each kind, and log lines."""

import logging
from collections.abc import Callable

from rockoon_core.errors import NotAuthenticated, NotPermitted

log = logging.getLogger(__name__)

# Refusals are for the caller; the log shows that there are some, not each.
LOGGED_SECONDS = 1.0

REASONS = ("no key", "unknown key", "disabled key", "wrong signature", "stale", "replayed")


def refused(kind: str, reason: str, **details: object) -> NotAuthenticated:
    """A refusal to take somebody for who he says he is; its kind is one of REASONS."""
    return NotAuthenticated(reason=reason, kind=kind, **details)


class Refusals:
    """What a gate refused.

    Args:
        clock: epoch milliseconds, never going back.

    Attributes:
        counts: how many calls, by reason.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self.counts: dict[str, int] = dict.fromkeys((*REASONS, "not permitted"), 0)
        self._clock = clock
        self._logged_ms = 0

    def note(self, method: str, refusal: NotAuthenticated | NotPermitted) -> None:
        self.counts[refusal.details.get("kind", "not permitted")] += 1
        now_ms = self._clock()
        if now_ms - self._logged_ms >= LOGGED_SECONDS * 1000:
            self._logged_ms = now_ms
            log.warning("%s was refused: %s", method, refusal)
