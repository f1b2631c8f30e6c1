"""The fake nameserver with additions for broker tests: short calls for topics, and failures."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from rockoon_core.errors import RockoonError
from rockoon_proto.v1 import nameserver_pb2 as pb
from support.fake_nameserver import FakeNameserver
from support.waiting import DEADLINE_SECONDS


class BrokerRoutes(FakeNameserver):
    """The test changes its attributes.

    Attributes:
        etcd_cluster_id: identity of the etcd that it claims to follow.
        cluster_id: identity of the cluster; 0: it sends none.
        refuse_register, refuse_watch: raised by RegisterNode and WatchRoutes while they are set.
        registrations: number of registrations and renewals of nodes.
        registered: the last request of a node.
        watches: number of watches that were opened.
    """

    def __init__(self) -> None:
        super().__init__()
        self.etcd_cluster_id = 77
        self.cluster_id = 0
        self.refuse_register: RockoonError | None = None
        self.refuse_watch: RockoonError | None = None
        self.registrations = 0
        self.registered = pb.RegisterNodeRequest()
        self.watches = 0

    async def create_topic(
        self, name: str, queues: Mapping[str, int], permissions: int = 6, **attributes: str
    ) -> int:
        """Create a topic with a number of queues on each broker; return its revision.

        Args:
            attributes: as the topic's attributes, with underscores instead of dots in their names.
        """
        placements = [pb.Placement(broker=broker, queues=count) for broker, count in queues.items()]
        named = {name.replace("_", "."): value for name, value in attributes.items()}
        config = pb.TopicConfig(name=name, permissions=permissions, attributes=named)
        request = pb.CreateTopicRequest(config=config, placements=placements)
        return int((await self.CreateTopic(request, None)).revision)

    async def permit(self, name: str, permissions: int) -> int:
        """Change the permissions of a topic; return the revision."""
        self.topics[name].config.permissions = permissions
        await self._tell(topics=[self.topics[name]])
        return self.revision

    async def set_attribute(self, topic: str, name: str, value: str) -> int:
        """Set an attribute of a topic; an empty value removes it. Return the revision."""
        attributes = self.topics[topic].config.attributes
        if value:
            attributes[name] = value
        else:
            attributes.pop(name, None)
        await self._tell(topics=[self.topics[topic]])
        return self.revision

    async def delete_topic(self, name: str) -> int:
        return int((await self.DeleteTopic(pb.DeleteTopicRequest(name=name), None)).revision)

    def lose_everything(self, etcd_cluster_id: int) -> None:
        """Simulate the loss of etcd's data: no topics, and revisions start from the beginning."""
        self.revision, self.etcd_cluster_id = 1, etcd_cluster_id
        self.topics.clear()
        self.nodes.clear()
        self._updates.clear()

    async def wait_until(self, condition: Any) -> None:
        """Wait until a condition on this object is true; it is evaluated after each change."""
        async with asyncio.timeout(DEADLINE_SECONDS), self._changed:
            await self._changed.wait_for(condition)

    @property
    def node_names(self) -> set[str]:
        return {node.name for node in self.nodes.values()}

    async def RegisterNode(
        self, request: pb.RegisterNodeRequest, context: Any
    ) -> pb.RegisterNodeReply:
        await self.registering.wait()
        if self.refuse_register is not None:
            raise self.refuse_register
        reply = await super().RegisterNode(request, context)
        self.registered = request
        self.registrations += 1
        async with self._changed:
            self._changed.notify_all()
        return reply

    async def UnregisterNode(
        self, request: pb.UnregisterNodeRequest, context: Any
    ) -> pb.UnregisterNodeReply:
        node = self.nodes.get((request.kind, request.name))
        assert node is None or node.store_id == request.store_id, "only the owner says goodbye"
        return await super().UnregisterNode(request, context)

    async def WatchRoutes(
        self, request: pb.WatchRoutesRequest, context: Any
    ) -> AsyncIterator[pb.RouteUpdate]:
        self.watches += 1
        if self.refuse_watch is not None:
            raise self.refuse_watch
        async for update in super().WatchRoutes(request, context):
            update.etcd_cluster_id = self.etcd_cluster_id
            update.cluster_id = self.cluster_id
            yield update
