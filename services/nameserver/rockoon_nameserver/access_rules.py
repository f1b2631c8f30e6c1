"""Permissions for calls to a nameserver; docs/operate/security.md lists them for operators."""

from collections.abc import Iterable
from typing import Any

from rockoon_format.names import Action, Need, group_resource, topic_need
from rockoon_runtime.access.rules import (
    ANY_KEY,
    FILTERED,
    KEYS_FOR_SERVICES,
    SERVICES_ONLY,
    Rule,
    Rules,
    on_cluster,
)


def named_topic(action: Action) -> Rule:
    return Rule(lambda request: (topic_need(action, request.name),))


def named_group(action: Action) -> Rule:
    return Rule(lambda request: ((action, group_resource(request.name)),))


def route_of(request: Any) -> Iterable[Need]:
    """Require "see" of topics that may not exist: a refusal must not reveal whether they do."""
    return (topic_need("see", topic) for topic in request.topics)


def subscription(request: Any) -> Iterable[Need]:
    """Permissions of a group's first read of a topic, which creates the group if needed."""
    return topic_need("read", request.topic), ("read", group_resource(request.group))


def provided(request: Any) -> Iterable[Need]:
    """Readers need "read" on the group; a request for more queues changes it and needs "admin"."""
    yield "admin" if request.queues else "read", group_resource(request.group)


RULES: Rules = (
    {
        f"/rockoon.v1.NameServer/{method}": rule
        for method, rule in {
            "RegisterNode": SERVICES_ONLY,
            "UnregisterNode": SERVICES_ONLY,
            "GetRoute": Rule(route_of),
            # All nodes, and the topics and groups that the caller may see.
            "WatchRoutes": FILTERED,
            "CreateTopic": Rule(lambda request: (topic_need("admin", request.config.name),)),
            "CreateTopics": Rule(
                lambda request: (topic_need("admin", each.config.name) for each in request.topics)
            ),
            "UpdateTopic": named_topic("admin"),
            "DeleteTopic": named_topic("admin"),
            "ListTopics": ANY_KEY,
            "CreateGroup": Rule(lambda request: (("admin", group_resource(request.config.name)),)),
            "UpdateGroup": Rule(lambda request: (("admin", group_resource(request.config.name)),)),
            "DeleteGroup": named_group("admin"),
            "GetGroup": Rule(lambda request: (("see", group_resource(request.group)),)),
            "ListGroups": ANY_KEY,
            "Subscribe": Rule(subscription),
            "ProvideGroupTopic": Rule(provided),
            "DescribeCluster": on_cluster("read"),
        }.items()
    }
    | {
        f"/rockoon.v1.Logs/{method}": rule
        for method, rule in {
            "WatchLogs": SERVICES_ONLY,
            "SuspectLeader": SERVICES_ONLY,
            "ReportLog": SERVICES_ONLY,
            "ConfirmEpoch": SERVICES_ONLY,
            "RecordCommittedEnd": SERVICES_ONLY,
            "ChangeInSync": SERVICES_ONLY,
            "HandOver": SERVICES_ONLY,
            "Resign": SERVICES_ONLY,
            "GoOnAlone": SERVICES_ONLY,
            "ListLogs": on_cluster("read"),
            "DescribeLog": on_cluster("read"),
            "MoveReplica": on_cluster("admin"),
            "SetCopies": on_cluster("admin"),
            "ElectLog": on_cluster("admin"),
            "AdoptLog": on_cluster("admin"),
        }.items()
    }
    | {
        f"/rockoon.v1.AccessKeys/{method}": rule
        for method, rule in {
            "CreateKey": on_cluster("admin", never_open=True),
            "ListKeys": on_cluster("admin", never_open=True),
            "UpdateKey": on_cluster("admin", never_open=True),
            "RotateKey": on_cluster("admin", never_open=True),
            "DeleteKey": on_cluster("admin", never_open=True),
            "WatchKeys": KEYS_FOR_SERVICES,
        }.items()
    }
)
