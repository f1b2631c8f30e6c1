"""The fake nameserver with what broker tests need beside: topics in one line, and bad days."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from rockoon_core.errors import RockoonError
from rockoon_proto.v1 import nameserver_pb2 as pb
from support.fake_nameserver import FakeNameserver
from support.waiting import DEADLINE_SECONDS


class BrokerRoutes(FakeNameserver):
    """Changed by the test.

    Attributes:
        etcd_cluster_id: identity of the etcd it claims to follow.
        cluster_id: identity of the cluster; 0 tells none.
        refuse_register, refuse_watch: raised by RegisterNode and WatchRoutes while they are set.
        registrations: how often nodes have registered or renewed.
        registered: the last request of a node.
        watches: how many watches were opened.
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
        """Create a topic with some queues on each broker; returns its revision.

        Args:
            attributes: their names have underscores where the topic's have dots.
        """
        placements = [pb.Placement(broker=broker, queues=count) for broker, count in queues.items()]
        named = {name.replace("_", "."): value for name, value in attributes.items()}
        config = pb.TopicConfig(name=name, permissions=permissions, attributes=named)
        request = pb.CreateTopicRequest(config=config, placements=placements)
        return int((await self.CreateTopic(request, None)).revision)

    async def permit(self, name: str, permissions: int) -> int:
        """Change what may be done with a topic; returns the revision."""
        self.topics[name].config.permissions = permissions
        await self._tell(topics=[self.topics[name]])
        return self.revision

    async def set_attribute(self, topic: str, name: str, value: str) -> int:
        """Give a topic an attribute, or take it away with an empty value; returns the revision."""
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
        """As if etcd's data was lost: no topics, and revisions begin anew."""
        self.revision, self.etcd_cluster_id = 1, etcd_cluster_id
        self.topics.clear()
        self.nodes.clear()
        self._updates.clear()

    async def wait_until(self, condition: Any) -> None:
        """Wait until something is true of this object after one of its changes."""
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
