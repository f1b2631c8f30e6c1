"""Rules of calls: a service has one table, by the full name of the method."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rockoon_core.errors import NotPermitted
from rockoon_core.signature import CLUSTER_KEY_ID
from rockoon_runtime.access.keys import CLUSTER, Action, KnownKey, require

Need = tuple[Action, str]


@dataclass(frozen=True, slots=True)
class Rule:
    """Who may make a call.

    Attributes:
        needs: the permissions that a request needs, all of them.
        services_only: only those who have the cluster secret.
        filtered: what is answered depends on the caller's permissions, so a stream of answers
            is begun again when those change.
        never_open: nobody passes without a key, not even where keys are optional.
    """

    needs: Callable[[Any], Iterable[Need]]
    services_only: bool = False
    filtered: bool = False
    never_open: bool = False


Rules = Mapping[str, Rule]


def nothing_more(_request: object) -> Iterable[Need]:
    return ()


def on_cluster(action: Action, *, never_open: bool = False) -> Rule:
    """A permission on the cluster, whatever is asked."""
    needs: tuple[Need, ...] = ((action, CLUSTER),)
    return Rule(lambda _request: needs, never_open=never_open)


# A key, whichever; the service itself leaves out what the caller may not see, or asks further.
ANY_KEY = Rule(nothing_more)
FILTERED = Rule(nothing_more, filtered=True)
SERVICES_ONLY = Rule(nothing_more, services_only=True)
KEYS_FOR_SERVICES = Rule(nothing_more, services_only=True, never_open=True)
# What such a caller is told that he lacks.
SERVICES = f"cluster, as {CLUSTER_KEY_ID!r}"


def check(key: KnownKey, rule: Rule, request: Any) -> None:
    """Whether a key may make a call.

    Raises:
        NotPermitted: it lacks a permission.
    """
    if rule.services_only and key.key_id != CLUSTER_KEY_ID:
        raise NotPermitted(key=key.key_id, action="admin", resource=SERVICES)
    for action, resource in rule.needs(request):
        require(key, action, resource)
