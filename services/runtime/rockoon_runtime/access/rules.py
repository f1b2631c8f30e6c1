"""Rules of calls: the permissions that each method requires, in one table per service by the full
name of the method. Counts of refused calls."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rockoon_core.errors import NotAuthenticated, NotPermitted
from rockoon_core.signature import CLUSTER_KEY_ID
from rockoon_runtime.access.keys import CLUSTER, Action, KnownKey, require

Need = tuple[Action, str]


@dataclass(frozen=True, slots=True)
class Rule:
    """The requirements for a call.

    Attributes:
        needs: returns all permissions that a request requires.
        services_only: only callers with the cluster secret.
        filtered: the response depends on the caller's permissions. When they change, a stream of
            responses is ended, so that the client opens it again.
        never_open: a key is required even if keys are optional.
    """

    needs: Callable[[Any], Iterable[Need]]
    services_only: bool = False
    filtered: bool = False
    never_open: bool = False


Rules = Mapping[str, Rule]


def nothing_more(_request: object) -> Iterable[Need]:
    return ()


def on_cluster(action: Action, *, never_open: bool = False) -> Rule:
    """Return a permission on the cluster for every request."""
    needs: tuple[Need, ...] = ((action, CLUSTER),)
    return Rule(lambda _request: needs, never_open=never_open)


# Any key; the service itself filters the response, or requires more.
ANY_KEY = Rule(nothing_more)
FILTERED = Rule(nothing_more, filtered=True)
SERVICES_ONLY = Rule(nothing_more, services_only=True)
KEYS_FOR_SERVICES = Rule(nothing_more, services_only=True, never_open=True)
# The resource in the error for other callers.
SERVICES = f"cluster, as {CLUSTER_KEY_ID!r}"


def check(key: KnownKey, rule: Rule, request: Any) -> None:
    """Raise NotPermitted if a key lacks a permission for a call."""
    if rule.services_only and key.key_id != CLUSTER_KEY_ID:
        raise NotPermitted(key=key.key_id, action="admin", resource=SERVICES)
    for action, resource in rule.needs(request):
        require(key, action, resource)


log = logging.getLogger(__name__)

# The caller receives each refusal; the log shows one per interval.
LOGGED_SECONDS = 1.0

REASONS = (
    "no key",
    "unknown key",
    "disabled key",
    "wrong signature",
    "replaced secret",
    "stale",
    "replayed",
)


def refused(kind: str, reason: str, **details: object) -> NotAuthenticated:
    """Return the error of a call that is not authenticated; its kind is one of REASONS."""
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
