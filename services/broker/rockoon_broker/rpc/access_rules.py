"""Permissions that calls to a broker require; user documentation: docs/operate/security.md."""

from collections.abc import Iterable
from typing import Any

from rockoon_format.names import CLUSTER, Action, Need, group_resource, topic_need
from rockoon_runtime.access.rules import ANY_KEY, FILTERED, Rule, Rules, on_cluster


def of_topic(action: Action) -> Rule:
    return Rule(lambda request: (topic_need(action, request.topic),))


def pulled(request: Any) -> Iterable[Need]:
    """A caller that reads for a group must be allowed to consume in it."""
    yield topic_need("read", request.topic)
    if request.group:
        yield "read", group_resource(request.group)


def read(request: Any) -> Iterable[Need]:
    """For a read by message id the topic is known only after the read; the service checks it
    then."""
    if request.WhichOneof("what") == "range":
        yield topic_need("read", request.range.topic)


def log_read(request: Any) -> Iterable[Need]:
    """The whole log contains the messages of all topics, also of deleted ones."""
    if not request.topics or request.with_deleted_topics:
        yield "admin", CLUSTER
    for topic in set(request.topics):
        yield topic_need("read", topic)


def sent_back(request: Any) -> Iterable[Need]:
    yield "read", group_resource(request.group)
    for topic in {message.topic for message in request.messages}:
        yield topic_need("read", topic)


def queues(request: Any) -> Iterable[Need]:
    """Queue ends and times are for readers and senders alike."""
    return (topic_need("see", topic) for topic in {queue.topic for queue in request.queues})


def append_streams(request: Any) -> Iterable[Need]:
    """Streams of one topic are for callers that may see it; all streams concern all topics."""
    yield topic_need("see", request.topic) if request.topic else ("read", CLUSTER)


def producer_group(request: Any) -> Iterable[Need]:
    yield "write", group_resource(request.producer_group)


RULES: Rules = {
    f"/rockoon.v1.Broker/{method}": rule
    for method, rule in {
        "Append": of_topic("write"),
        # Each batch is checked when it arrives.
        "AppendStream": ANY_KEY,
        "Pull": Rule(pulled),
        # Each subscription is checked when it arrives; all are checked again when permissions
        # change.
        "PullStream": FILTERED,
        "Read": Rule(read),
        "SendBack": Rule(sent_back),
        "QueueStatus": Rule(queues),
        "SearchOffset": Rule(queues),
        "EndTransaction": Rule(producer_group),
        "CheckTransactions": Rule(producer_group),
        # Waiting messages belong to all topics.
        "ListTransactions": on_cluster("read"),
        # The destination topic is known only after the record has been read.
        "CancelDelayed": ANY_KEY,
        "ListDelayed": on_cluster("read"),
        "QueryMessages": of_topic("read"),
        "ReadLog": Rule(log_read),
        "DescribeCompaction": on_cluster("admin"),
        "ReadGeneration": on_cluster("admin"),
        "PutGenerationFile": on_cluster("admin"),
        "PublishGeneration": on_cluster("admin"),
        "DiscardGeneration": on_cluster("admin"),
        "ListAppendStreams": Rule(append_streams),
        "DescribeBroker": on_cluster("read"),
        "DescribeDrain": on_cluster("read"),
    }.items()
}
