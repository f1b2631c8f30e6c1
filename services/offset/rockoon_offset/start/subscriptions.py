"""Since when a group reads a topic: known from the routes, or recorded by a nameserver now."""

from typing import NamedTuple

from rockoon_node.nameservers import Nameservers
from rockoon_offset.route_table import RouteTable
from rockoon_proto.v1.nameserver_pb2 import Group, SubscribeRequest

CALL_SECONDS_MAX = 3.0


class Subscription(NamedTuple):
    """A group and the revision at which it subscribed to a topic."""

    group: Group
    revision: int


class Subscriptions:
    """Looks subscriptions up, and has them recorded.

    Args:
        table: the routes.
        nameservers: record them.
    """

    def __init__(self, table: RouteTable, nameservers: Nameservers) -> None:
        self._table = table
        self._nameservers = nameservers

    def find(self, group: str, topic: str) -> Subscription | None:
        revision = self._table.subscriptions.get((group, topic))
        known = self._table.groups.get(group)
        if revision is None or known is None:
            return None
        return Subscription(known, revision)

    async def find_or_record(
        self, group: str, topic: str, *, create_group: bool = False
    ) -> Subscription:
        """The subscription, recorded if it is not known.

        Args:
            group: its name.
            topic: what it reads.
            create_group: make the group, too, when it does not exist.

        Raises:
            RockoonError: no nameserver could record it, or it refused to.
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
        return Subscription(reply.group, reply.subscription.revision)
