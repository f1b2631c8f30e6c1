"""Permissions that a key needs for each call, by the table of docs/operate/security.md."""

from typing import Any

import pytest
from google.protobuf.message_factory import GetMessageClass
from security.test_access_rules import SERVICES, methods

from rockoon_proto.v1.broker_pb2 import ListAppendStreamsRequest
from rockoon_proto.v1.in_flight_pb2 import (
    AcquireRequest,
    ListProducersRequest,
    ProducerReport,
    ReportClientsRequest,
    Wanted,
)
from rockoon_proto.v1.nameserver_pb2 import ProvideGroupTopicRequest
from rockoon_proto.v1.offset_pb2 import TopicSubscription

# By need: calls, whose requests name topic "topic", group "group", producer group
# "producer_group", and, where they are about one of either, "name".
NEEDS = {
    "read topic:topic": "Broker/Read Broker/QueryMessages Broker/ReadLog",
    "write topic:topic": "Broker/Append",
    "see topic:topic": (
        "Broker/QueueStatus Broker/SearchOffset NameServer/GetRoute "
        "Broker/ListAppendStreams InFlightService/ListProducers"
    ),
    "read group:group, read topic:topic": (
        "Broker/Pull Broker/SendBack NameServer/Subscribe "
        "OffsetService/Heartbeat OffsetService/Resolve OffsetService/Commit "
        "InFlightService/Acquire InFlightService/Acknowledge InFlightService/ChangeVisibility"
    ),
    # Of a report of producers, which only gateways send: admin on the cluster.
    "admin cluster, read group:group, read topic:topic": "InFlightService/ReportClients",
    "read group:group": (
        "NameServer/ProvideGroupTopic "
        "OffsetService/Leave OffsetService/WatchGroup"
    ),
    # Of a reset to the offsets of another group.
    "see group:group, write group:group": "OffsetService/PlanReset OffsetService/Reset",
    "see group:group": (
        "NameServer/GetGroup "
        "OffsetService/Query OffsetService/ListProgress OffsetService/Lag "
        "OffsetService/ListMembers OffsetService/ListLocks OffsetService/Export "
        "InFlightService/ListInFlight InFlightService/ListClients"
    ),
    "write group:producer_group": "Broker/EndTransaction Broker/CheckTransactions",
    "admin topic:name": "NameServer/CreateTopic NameServer/CreateTopics NameServer/UpdateTopic "
    "NameServer/DeleteTopic",
    "admin group:name": "NameServer/CreateGroup NameServer/UpdateGroup NameServer/DeleteGroup",
    "read cluster": (
        "NameServer/DescribeCluster Logs/ListLogs Logs/DescribeLog "
        "Broker/ListTransactions Broker/ListDelayed Broker/DescribeBroker Broker/DescribeDrain"
    ),
    "admin cluster": (
        "AccessKeys/CreateKey AccessKeys/ListKeys AccessKeys/UpdateKey AccessKeys/RotateKey "
        "AccessKeys/DeleteKey Broker/DescribeCompaction Broker/ReadGeneration "
        "Broker/PutGenerationFile Broker/PublishGeneration Broker/DiscardGeneration "
        "OffsetService/Import OffsetService/ReadState NameServer/ReadRoutes Logs/MoveReplica "
        "Logs/RemoveReplica "
        "Logs/SetCopies Logs/ElectLog Logs/AdoptLog "
        "Settings/DescribeSettings Settings/ChangeSetting NameServer/RemoveBroker "
        "LiveSettings/ListGateways "
        "NameServer/FinishUpgrade"
    ),
    "the cluster secret": (
        "OffsetService/Unread "
        "NameServer/RegisterNode NameServer/UnregisterNode AccessKeys/WatchKeys Logs/WatchLogs "
        "Logs/SuspectLeader Logs/ReportLog Logs/ConfirmEpoch Logs/ChangeInSync Logs/HandOver "
        "Logs/RecordCommittedEnd Logs/Resign Logs/GoOnAlone "
        "LiveSettings/StoreSetting LiveSettings/WatchSettings"
    ),
    # The service checks the content of the stream or of the reply.
    "a key": (
        "Broker/AppendStream Broker/PullStream Broker/CancelDelayed "
        "NameServer/WatchRoutes NameServer/ListTopics NameServer/ListGroups "
        "OffsetService/ApplyReset OffsetService/UndoReset"
    ),
}  # fmt: skip
DEPTH_MAX = 3


def filled(message: Any, depth: int = 0) -> Any:
    """Set every name in a request, also in nested messages, to its own field's name."""
    for field in message.DESCRIPTOR.fields:
        if field.type == field.TYPE_STRING:
            if field.name in ("topic", "group", "producer_group", "name"):
                setattr(message, field.name, field.name)
            elif field.name == "topics":
                message.topics.append("topic")
            elif field.name == "parent":
                message.parent = "topic"
        elif field.type == field.TYPE_MESSAGE and not field.message_type.GetOptions().map_entry:
            part = getattr(message, field.name)
            if depth < DEPTH_MAX:
                filled(part.add() if field.is_repeated else part, depth + 1)
    return message


@pytest.mark.parametrize("service", SERVICES)
def test_a_key_needs_for_each_call_what_the_documentation_says(service: str) -> None:
    expected = {
        f"/rockoon.v1.{call}": need for need, calls in NEEDS.items() for call in calls.split()
    }
    rules, files = SERVICES[service]
    for name, method in methods(files).items():
        rule = rules[name]
        request = filled(GetMessageClass(method.input_type)())
        needs = sorted({f"{action} {resource}" for action, resource in rule.needs(request)})
        nothing_more = "the cluster secret" if rule.services_only else "a key"
        assert (", ".join(needs) or nothing_more) == expected[name], name


@pytest.mark.parametrize(
    ("service", "call"),
    [("broker", "Broker/ListAppendStreams"), ("offset", "InFlightService/ListProducers")],
)
def test_producers_of_all_topics_are_listed_for_who_may_see_the_cluster(
    service: str, call: str
) -> None:
    rules, _ = SERVICES[service]
    for request in (ListAppendStreamsRequest(), ListProducersRequest()):
        assert list(rules[f"/rockoon.v1.{call}"].needs(request)) == [("read", "cluster")]


def test_only_gateways_and_administrators_report_producers() -> None:
    rules, _ = SERVICES["offset"]
    needs = rules["/rockoon.v1.InFlightService/ReportClients"].needs
    report = ProducerReport(client_id="invented")
    assert list(needs(ReportClientsRequest(producers=[report]))) == [("admin", "cluster")]
    assert list(needs(ReportClientsRequest())) == []


def test_a_receiver_may_read_the_topics_of_its_filters() -> None:
    rules, _ = SERVICES["offset"]
    filters = [TopicSubscription(topic="other", expression="*")]
    request = AcquireRequest(wanted=[Wanted(group="group", filters=filters)])
    needs = list(rules["/rockoon.v1.InFlightService/Acquire"].needs(request))
    assert needs == [("read", "group:group"), ("read", "topic:other")]


def test_more_queues_than_a_group_asks_for_are_a_change_of_it() -> None:
    rules, _ = SERVICES["nameserver"]
    rule = rules["/rockoon.v1.NameServer/ProvideGroupTopic"]
    request = ProvideGroupTopicRequest(group="group", queues=2)
    assert list(rule.needs(request)) == [("admin", "group:group")]
