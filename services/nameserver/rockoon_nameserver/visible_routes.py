"""The routes for a caller: only resources that its key may see, and addresses of its network."""

from collections.abc import Callable, Iterable
from typing import Any

from rockoon_format.names import group_resource, topic_resource
from rockoon_proto.v1.nameserver_pb2 import Node, ReplicaAddress, RouteUpdate, Subscription

Sees = Callable[[str], bool]


def keep_visible(update: RouteUpdate, sees: Sees) -> None:
    """Remove from an update the topics and groups that the caller must not see, and also their
    removals.

    Args:
        update: changed.
        sees: whether the caller may see a resource.
    """

    def topic(name: str) -> bool:
        return sees(topic_resource(name))

    def group(name: str) -> bool:
        return sees(group_resource(name))

    def subscription(entry: Subscription) -> bool:
        return topic(entry.topic) and group(entry.group)

    keep(update.topics, [each for each in update.topics if topic(each.config.name)])
    keep(update.groups, [each for each in update.groups if group(each.config.name)])
    keep(update.subscriptions, [each for each in update.subscriptions if subscription(each)])
    keep(update.removed_topics, [each for each in update.removed_topics if topic(each)])
    keep(update.removed_groups, [each for each in update.removed_groups if group(each)])
    keep(
        update.deletions,
        [e for e in update.deletions if (topic(e.topic) if e.topic else group(e.group))],
    )
    keep(
        update.removed_subscriptions,
        [each for each in update.removed_subscriptions if subscription(each)],
    )


def keep(field: Any, kept: list[Any]) -> None:
    if len(kept) < len(field):
        del field[:]
        field.extend(kept)


def set_addresses(nodes: Iterable[Node], *, external: bool) -> None:
    """Set the addresses of nodes in a reply to those in the caller's network.

    Args:
        nodes: changed.
        external: whether the caller is in another network.
    """
    if not external:
        return
    for node in nodes:
        entries: list[Node | ReplicaAddress] = [node, *node.replicas]
        for each in entries:
            each.address = each.external_address
            each.ClearField("external_address")
            each.ClearField("ip_address")
