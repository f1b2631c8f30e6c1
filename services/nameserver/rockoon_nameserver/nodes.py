"""Brokers and offset services: their leases, and who may bear which name."""

import logging
import re

from rockoon_core.errors import Busy, EtcdUnavailable, InvalidArgument, NodeNameTaken
from rockoon_nameserver.etcd import Etcd, LeaseGone
from rockoon_nameserver.etcd_data import Delete, KeyValue, Put, Span, absent, unchanged
from rockoon_nameserver.keyspace import (
    KIND_FOLDERS,
    Keyspace,
    NodeKey,
    node_value,
    read_node,
)
from rockoon_proto.v1.nameserver_pb2 import (
    OFFSET_SERVICE,
    Node,
    RegisterNodeReply,
    RegisterNodeRequest,
    UnregisterNodeReply,
    UnregisterNodeRequest,
)

log = logging.getLogger(__name__)

NODE_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
ADDRESS = re.compile(r"\S+:[0-9]{1,5}")
# A conflict means that somebody else changed the same key just now; more than a few in a row do
# not happen by chance.
ATTEMPTS_MAX = 8


class Nodes:
    """Registers nodes and keeps them alive. Nothing about them is kept in this process.

    Args:
        etcd: a connection.
        keyspace: the cluster's keys.
        lease_seconds: how long a node stays without a sign of life.
    """

    def __init__(self, etcd: Etcd, keyspace: Keyspace, lease_seconds: int) -> None:
        self._etcd = etcd
        self._keyspace = keyspace
        self._lease_seconds = lease_seconds

    async def register(self, request: RegisterNodeRequest) -> RegisterNodeReply:
        """Put a node into the routes, or renew its lease (which makes no new revision).

        Raises:
            InvalidArgument: the node lacks something.
            NodeNameTaken: a live node with another store bears the name, or another live offset
                service exists, or a later process of the same store has taken over.
            Busy: a copy of the store has just taken over from another one; try again.
            EtcdUnavailable: try again; a node whose lease has ended meanwhile is put back then.
        """
        node = checked(request.node)
        key = NodeKey(node.kind, node.name)
        if request.lease_id:
            reply = await self._renew(key, node, request.lease_id)
            if reply is not None:
                return reply
        lease_id, ttl_seconds = 0, 0.0
        for _ in range(ATTEMPTS_MAX):
            holder = await self._holder(key)
            held = self._refuse_if_taken(node, holder, fresh=request.lease_id == 0)
            node.predecessor_lease_id = await self._predecessor(node, held, holder)
            if not lease_id:
                lease_id, ttl_seconds = await self._etcd.grant_lease(self._lease_seconds)
            condition = (
                absent(self._contended(key))
                if holder is None
                else unchanged(holder.key, holder.mod_revision)
            )
            try:
                outcome = await self._etcd.transaction(
                    [condition], [Put(self._keyspace.key(key), node_value(node), lease_id)]
                )
            except LeaseGone:
                lease_id = 0
                continue
            if outcome.succeeded:
                still_needed = (0, lease_id, node.predecessor_lease_id)
                if holder is not None and holder.lease_id not in still_needed:
                    await self._end_lease(holder.lease_id)
                log.info("%s %s is at %s", KIND_FOLDERS[node.kind], node.name, node.address)
                return await self._reply(node, lease_id, ttl_seconds, outcome.revision)
        await self._end_lease(lease_id)
        raise Busy(reason=f"others keep registering {node.name!r}")

    async def unregister(self, request: UnregisterNodeRequest) -> UnregisterNodeReply:
        """Take a node out of the routes; one that is not there is no error.

        Raises:
            NodeNameTaken: the node of that name has another store.
        """
        if request.kind not in KIND_FOLDERS:
            raise InvalidArgument(reason="a node is a broker or an offset service")
        key = NodeKey(request.kind, request.name)
        for _ in range(ATTEMPTS_MAX):
            found = (await self._etcd.read(self._keyspace.one(key))).items
            if not found:
                return UnregisterNodeReply()
            node = read_node(key, found[0].value)
            if node.store_id != request.store_id:
                raise NodeNameTaken(name=node.name, address=node.address)
            if request.lease_id and found[0].lease_id != request.lease_id:
                if request.lease_id == node.predecessor_lease_id:
                    await self._end_lease(request.lease_id)
                return UnregisterNodeReply()
            outcome = await self._etcd.transaction(
                [unchanged(found[0].key, found[0].mod_revision)],
                [Delete(self._keyspace.one(key))],
            )
            if outcome.succeeded:
                await self._end_lease(found[0].lease_id)
                log.info("%s %s has left", KIND_FOLDERS[node.kind], node.name)
                return UnregisterNodeReply(revision=outcome.revision)
        raise Busy(reason=f"others keep registering {request.name!r}")

    async def _renew(self, key: NodeKey, node: Node, lease_id: int) -> RegisterNodeReply | None:
        """Renew a lease whose key is as the node says; None when it has to register again."""
        found = (await self._etcd.read(self._keyspace.one(key))).items
        if not found or found[0].lease_id != lease_id:
            return None
        node.predecessor_lease_id = read_node(key, found[0].value).predecessor_lease_id
        if found[0].value != node_value(node):
            return None
        ttl_seconds = await self._etcd.renew_lease(lease_id)
        if not ttl_seconds:
            return None
        return await self._reply(node, lease_id, ttl_seconds, found[0].mod_revision)

    async def _holder(self, key: NodeKey) -> KeyValue | None:
        """Whoever has the name now. A key that exists is alive: its lease would have taken it."""
        found = (await self._etcd.read(self._contended(key))).items
        own = self._keyspace.key(key)
        # If there are several offset services all the same, any that is not the caller refuses it.
        return min(found, key=lambda item: item.key == own, default=None)

    def _contended(self, key: NodeKey) -> Span:
        """What only one node may hold: a broker's name, or the one place of an offset service."""
        if key.kind == OFFSET_SERVICE:
            return self._keyspace.nodes(key.kind)
        return self._keyspace.one(key)

    async def _predecessor(self, node: Node, held: Node | None, holder: KeyValue | None) -> int:
        """The lease of a process that a node takes over from and that may still answer; 0 for none.

        One that had the store at the same place is over, because only one at a time can open it
        there. One with a copy is not: it may hear of its end only with its next renewal. So its
        lease is not ended, and the node waits for it (`_reply`).
        """
        if held is None or holder is None:
            return 0
        if held.place == node.place and (node.place or held.started_at_ms == node.started_at_ms):
            return held.predecessor_lease_id
        before = held.predecessor_lease_id
        if before and await self._etcd.lease_seconds_left(before):
            raise Busy(reason=f"{held.name!r} at {held.address} has just taken over")
        return holder.lease_id

    def _refuse_if_taken(self, node: Node, holder: KeyValue | None, *, fresh: bool) -> Node | None:
        """The node that holds the name now, if the one that asks may have it."""
        if holder is None:
            return None
        key = self._keyspace.parse(holder.key)
        assert isinstance(key, NodeKey)
        held = read_node(key, holder.value)
        if held.name != node.name:
            raise NodeNameTaken(
                f"{held.name!r} at {held.address} is the offset service of this cluster, "
                "which has only one: stop it first",
                name=held.name,
                address=held.address,
            )
        if held.store_id != node.store_id:
            raise NodeNameTaken(name=held.name, address=held.address)
        if not fresh and held.started_at_ms > node.started_at_ms:
            raise NodeNameTaken(
                f"{held.name!r} was started again at {held.address}: this process is over",
                name=held.name,
                address=held.address,
            )
        return held

    async def _end_lease(self, lease_id: int) -> None:
        """End a lease nobody needs; it would end by itself, so failing is no failure."""
        if lease_id:
            try:
                await self._etcd.revoke_lease(lease_id)
            except EtcdUnavailable as failure:
                log.info("lease %d ends by itself: %s", lease_id, failure)

    async def _reply(
        self, node: Node, lease_id: int, ttl_seconds: float, revision: int
    ) -> RegisterNodeReply:
        before = node.predecessor_lease_id
        return RegisterNodeReply(
            lease_id=lease_id,
            ttl_seconds=ttl_seconds,
            renew_seconds=ttl_seconds / 3,
            revision=revision,
            predecessor_seconds=await self._etcd.lease_seconds_left(before) if before else 0.0,
        )


def checked(node: Node) -> Node:
    """The node, if it has everything a node needs."""
    if node.kind not in KIND_FOLDERS:
        raise InvalidArgument(reason="a node is a broker or an offset service")
    if not NODE_NAME.fullmatch(node.name):
        raise InvalidArgument(
            reason=f"{node.name!r} is not a node's name: use 1 to 100 letters, digits and . _ -"
        )
    if not ADDRESS.fullmatch(node.address):
        raise InvalidArgument(reason=f"address {node.address!r} is not host:port")
    if node.external_address and not ADDRESS.fullmatch(node.external_address):
        raise InvalidArgument(reason=f"external address {node.external_address!r} is not host:port")
    if not node.store_id:
        raise InvalidArgument(reason=f"node {node.name!r} has no store_id")
    return node
