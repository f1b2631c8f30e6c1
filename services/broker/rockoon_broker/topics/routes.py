"""Extracts one broker's part of route updates. Pure."""

from rockoon_broker.topics.topics import PERMISSIONS_DEFAULT, RouteChange, ServedTopic
from rockoon_node.deletions import Deletions
from rockoon_proto.v1 import nameserver_pb2


def change_from_wire(update: nameserver_pb2.RouteUpdate, broker: str) -> RouteChange:
    """Return the change that an update means for the broker with the given name."""
    return RouteChange(
        revision=update.revision,
        snapshot=update.snapshot,
        history=update.etcd_cluster_id,
        topics=[topic_from_wire(topic, broker) for topic in update.topics],
        removed=list(update.removed_topics),
        # Deleted topics are dropped at once, so earlier deletions need not be known.
        deletions=Deletions().after(update),
        went_back=update.etcd_went_back,
    )


def topic_from_wire(topic: nameserver_pb2.Topic, broker: str) -> ServedTopic:
    return ServedTopic(
        name=topic.config.name,
        queues=sum(block.queues for block in topic.blocks if block.broker == broker),
        incarnation=topic.incarnation,
        permissions=topic.config.permissions or PERMISSIONS_DEFAULT,
        attributes=dict(topic.config.attributes),
    )


def offset_service_after(update: nameserver_pb2.RouteUpdate, before: str) -> str:
    """Return the offset service's address after an update; empty if there is no offset service."""
    kind = nameserver_pb2.OFFSET_SERVICE
    gone = update.snapshot or any(node.kind == kind for node in update.removed_nodes)
    address = "" if gone else before
    for node in update.nodes:
        if node.kind == kind:
            address = node.address
    return address
