"""Subscriptions of groups to topics, with the revision since which a group reads a topic."""

from typing import NamedTuple

from rockoon_node.nameservers import Nameservers
from rockoon_offset.route_table import OffsetRoutes
from rockoon_proto.v1.nameserver_pb2 import Group, SubscribeRequest

CALL_SECONDS_MAX = 3.0


class GroupSubscription(NamedTuple):
    """Subscription of a group to a topic, with the etcd revision at which the group subscribed."""

    group: Group
    revision: int


class Subscriptions:
    """Finds subscriptions of groups in the routes, and has a nameserver record missing ones.

    Args:
        table: the routes.
        nameservers: record new subscriptions.
    """

    def __init__(self, table: OffsetRoutes, nameservers: Nameservers) -> None:
        self._table = table
        self._nameservers = nameservers

    def find(self, group: str, topic: str) -> GroupSubscription | None:
        revision = self._table.subscriptions.get((group, topic))
        known = self._table.groups.get(group)
        if revision is None or known is None:
            return None
        return GroupSubscription(known, revision)

    async def find_or_record(
        self, group: str, topic: str, *, create_group: bool = False
    ) -> GroupSubscription:
        """Return a subscription; if it is not in the routes, a nameserver records it.

        Args:
            topic: the topic that the group reads.
            create_group: create the group if it does not exist.

        Raises:
            RockoonError: no nameserver could record the subscription, or a nameserver refused it.
        """
        found = self.find(group, topic)
        if found is not None:
            return found
        request = SubscribeRequest(group=group, topic=topic, create_group=create_group)
        reply = await self._nameservers.call(
            lambda stub: stub.Subscribe(
                request, timeout=CALL_SECONDS_MAX, metadata=self._nameservers.metadata
            )
        )
        return GroupSubscription(reply.group, reply.subscription.revision)
