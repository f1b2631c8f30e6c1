"""Permissions that calls to the offset service need; docs/operate/security.md lists them."""

from collections.abc import Iterable
from typing import Any

from rockoon_format.names import CLUSTER, Action, Need, group_resource, topic_need
from rockoon_runtime.access.rules import ANY_KEY, SERVICES_ONLY, Rule, Rules, on_cluster


def of_group(action: Action) -> Rule:
    return Rule(lambda request: ((action, group_resource(request.group)),))


def if_named(request: Any) -> Iterable[Need]:
    """Require "see" of the group if the call names one; without one, the reply is filtered."""
    if request.group:
        yield "see", group_resource(request.group)


def member(request: Any) -> Iterable[Need]:
    yield "read", group_resource(request.group)
    for subscription in request.subscriptions:
        yield topic_need("read", subscription.topic)


def resolved(request: Any) -> Iterable[Need]:
    yield "read", group_resource(request.group)
    for topic in {queue.topic for queue in request.queues}:
        yield topic_need("read", topic)


def committed(request: Any) -> Iterable[Need]:
    """Require "write" for a forced commit: like a reset, it can move an offset backwards."""
    yield "write" if request.force else "read", group_resource(request.group)
    if not request.force:
        for topic in {entry.queue.topic for entry in request.entries}:
            yield topic_need("read", topic)


def reset(request: Any) -> Iterable[Need]:
    """Require "see" of the group whose progress a reset clones."""
    yield "write", group_resource(request.group)
    if request.target.group:
        yield "see", group_resource(request.target.group)


def acquired(request: Any) -> Iterable[Need]:
    for wanted in request.wanted:
        yield "read", group_resource(wanted.group)
        topics = {reach.queue.topic for reach in wanted.queues}
        # The reply shows other readers' filters of these topics.
        topics.update(each.topic for each in wanted.filters)
        for topic in topics:
            yield topic_need("read", topic)
    for group in {each.receiver.group for each in request.lost}:
        yield "read", group_resource(group)


def reported(request: Any) -> Iterable[Need]:
    """Require the permissions of an acquisition for a report of a group's clients.

    Only gateways report producers: another caller could invent any number of them.
    """
    changes = [each.subscription for each in request.lite_changes]
    for group in {each.name.group for each in (*request.clients, *changes)}:
        yield "read", group_resource(group)
    for topic in {each.parent for each in changes}:
        yield topic_need("read", topic)
    if request.producers:
        yield "admin", CLUSTER


def producers(request: Any) -> Iterable[Need]:
    """Producers of one topic are for callers that may see it; a list without a topic names all
    topics."""
    yield topic_need("see", request.topic) if request.topic else ("read", CLUSTER)


def settled(entries: Iterable[Any]) -> Iterable[Need]:
    """Require the permissions of the acquisition for acknowledgements and visibility changes."""
    for group, topic in {(each.group, each.delivered.queue.topic) for each in entries}:
        yield "read", group_resource(group)
        yield topic_need("read", topic)


RULES: Rules = {
    f"/rockoon.v1.OffsetService/{method}": rule
    for method, rule in {
        "Heartbeat": Rule(member),
        "Leave": of_group("read"),
        "WatchGroup": of_group("read"),
        "Query": of_group("see"),
        "Resolve": Rule(resolved),
        "Commit": Rule(committed),
        "PlanReset": Rule(reset),
        "Reset": Rule(lambda request: reset(request.wanted)),
        # The request names only the reset; the service looks up its group and checks `write`.
        "ApplyReset": ANY_KEY,
        "UndoReset": ANY_KEY,
        "ListProgress": Rule(if_named),
        "Lag": of_group("see"),
        # A broker asks about every group.
        "Unread": SERVICES_ONLY,
        "ListMembers": Rule(if_named),
        "ListLocks": of_group("see"),
        "Export": Rule(if_named),
        "Import": on_cluster("admin"),
        "ReadState": on_cluster("admin"),
    }.items()
} | {
    f"/rockoon.v1.InFlightService/{method}": rule
    for method, rule in {
        "Acquire": Rule(acquired),
        "Acknowledge": Rule(lambda request: settled(request.entries)),
        "ChangeVisibility": Rule(lambda request: settled(request.changes)),
        "ListInFlight": of_group("see"),
        "ReportClients": Rule(reported),
        "ListClients": of_group("see"),
        "ListProducers": Rule(producers),
    }.items()
}
