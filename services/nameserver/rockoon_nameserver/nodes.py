"""Brokers and offset services: their leases, and the owner of each name.

A broker's name is that of its log. Each replica has an entry, and the change of its log's state
(`log_membership`) is written in the same transaction.
"""

import logging
import re
from collections.abc import Callable
from functools import lru_cache
from ipaddress import ip_address
from typing import NamedTuple

from rockoon_core.errors import Busy, EtcdUnavailable, InvalidArgument, NodeNameTaken
from rockoon_nameserver.etcd_data import (
    DeleteKey,
    KeyCondition,
    KeyValue,
    PutKey,
    absent,
    not_put_since,
    only,
    unchanged,
)
from rockoon_nameserver.follower import Rounds
from rockoon_nameserver.keyspace import (
    KIND_FOLDERS,
    PATH_PART,
    Keyspace,
    LogKey,
    NodeKey,
    ReplicaKey,
    log_value,
    node_value,
    read_log,
    read_node,
)
from rockoon_nameserver.log_membership import (
    is_only_voter,
    registered,
    registered_without_replication,
)
from rockoon_nameserver.route_store import LeaseGone, RouteStore
from rockoon_proto.v1.logs_pb2 import LogState
from rockoon_proto.v1.nameserver_pb2 import (
    BROKER,
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
# A conflict means a concurrent change of the same key; more than a few in a row are no chance.
ATTEMPTS_MAX = 8
RACK_CHARACTERS_MAX = 100
# Renewal interval as a share of the lease: usual, and maximum. Including the time limit of a
# renewal (ROUND in rockoon_node.registration), a renewal without a reply ends before the lease (ADR
# 27).
RENEW_SHARE = 0.36
RENEW_SHARE_MAX = 0.45
ENTRIES_COMPARED_MAX = 1_000


class Entries(NamedTuple):
    """etcd's entries for a node that registers: the owner of its name, and its log.

    Attributes:
        holder: the present owner. A key that exists is live: the end of its lease deletes it.
        replicas_put: revision of the newest entry of a replica of its log; 0: it has none.
        is_named: a live node, not this replica, has the name of its log.
        log: the state of its log, if there is one.
    """

    holder: KeyValue | None
    replicas_put: int
    is_named: bool
    log: KeyValue | None


class Nodes:
    """Registers nodes and renews their leases. This process keeps no state.

    Args:
        lease_seconds: how long a node stays in the routes without a renewal.
        has_queues: whether a broker of a name is known to have queues.
        rounds: when leases are to be renewed; default: after a third of their time.
    """

    def __init__(
        self,
        etcd: RouteStore,
        keyspace: Keyspace,
        lease_seconds: int,
        has_queues: Callable[[str], bool] = lambda _: False,
        rounds: Rounds | None = None,
    ) -> None:
        self._etcd = etcd
        self._keyspace = keyspace
        self._lease_seconds = lease_seconds
        self._has_queues = has_queues
        self._rounds = rounds

    async def register(self, request: RegisterNodeRequest) -> RegisterNodeReply:
        """Register a node in the routes, or renew its lease. A renewal makes no new revision.

        Raises:
            InvalidArgument: a field of the node is missing or invalid.
            NodeNameTaken: a live node with another store has the name, or another live offset
                service exists, or a later process of the same store has registered, or the store
                cannot be a copy of its log.
            NotReady: the log has messages, and the replica that has them must register first.
            Busy: a copy of the store has just replaced another one; try again.
            EtcdUnavailable: try again; a node whose lease has ended is put back then.
        """
        node = checked(request.node)
        key = key_of(node)
        if request.lease_id:
            reply = await self._renew(key, request)
            if reply is not None:
                return reply
        lease_id, ttl_seconds = 0, 0.0
        for _ in range(ATTEMPTS_MAX):
            entries = await self._entries(key, node)
            holder = entries.holder
            held = self._refuse_if_taken(node, holder, fresh=request.lease_id == 0)
            log_changes = self._log_changes(request, entries)
            node.predecessor_lease_id = await self._predecessor(node, held, holder)
            if not lease_id:
                lease_id, ttl_seconds = await self._etcd.grant_lease(self._lease_seconds)
            put = PutKey(self._keyspace.key(key), node_value(node), lease_id)
            conditions, operations = self._registration_operations(key, put, entries)
            for condition, operation in log_changes:
                conditions.append(condition)
                operations.append(operation)
            try:
                outcome = await self._etcd.transaction(conditions, operations)
            except LeaseGone:
                lease_id = 0
                continue
            if outcome.succeeded:
                still_needed = (0, lease_id, node.predecessor_lease_id)
                if holder is not None and holder.lease_id not in still_needed:
                    await self._end_lease(holder.lease_id)
                name = node.replica or node.name
                log.info("%s %s is at %s", KIND_FOLDERS[node.kind], name, node.address)
                return await self._reply(node, lease_id, ttl_seconds, outcome.revision)
        await self._end_lease(lease_id)
        raise Busy(reason=f"{node.name!r} keeps registering from elsewhere: try again")

    async def unregister(self, request: UnregisterNodeRequest) -> UnregisterNodeReply:
        """Remove a node from the routes, if it is there. Raises NodeNameTaken for another store."""
        if request.kind not in KIND_FOLDERS:
            raise InvalidArgument(reason="a node is a broker or an offset service")
        as_node = NodeKey(request.kind, request.name)
        as_replica = ReplicaKey(request.kind, request.name, request.store_id)
        for _ in range(ATTEMPTS_MAX):
            nodes, replicas = await self._etcd.read_at_once(
                self._keyspace.one(as_node), self._keyspace.one(as_replica)
            )
            if not (found := [*replicas, *nodes]):
                return UnregisterNodeReply()
            node = read_node(as_replica if replicas else as_node, found[0].value)
            if node.store_id != request.store_id:
                raise NodeNameTaken(name=node.name, address=node.address)
            if request.lease_id and found[0].lease_id != request.lease_id:
                if request.lease_id == node.predecessor_lease_id:
                    await self._end_lease(request.lease_id)
                return UnregisterNodeReply()
            outcome = await self._etcd.transaction(
                [unchanged(found[0].key, found[0].mod_revision)],
                [DeleteKey(only(found[0].key))],
            )
            if outcome.succeeded:
                await self._end_lease(found[0].lease_id)
                name = node.replica or node.name
                log.info("%s %s has left", KIND_FOLDERS[node.kind], name)
                return UnregisterNodeReply(revision=outcome.revision)
        raise Busy(reason=f"{request.name!r} keeps registering: try again")

    async def _renew(
        self, key: NodeKey | ReplicaKey, request: RegisterNodeRequest
    ) -> RegisterNodeReply | None:
        """Renew the lease of an unchanged node; None if the node has to register again."""
        node, lease_id = request.node, request.lease_id
        entries = await self._entries(key, node, joint=True)
        found = entries.holder
        if found is None or found.key != self._keyspace.key(key) or found.lease_id != lease_id:
            return None
        before = predecessor_in(key, found.value, node.SerializeToString(deterministic=True))
        if before is None or self._log_changes(request, entries):
            return None
        node.predecessor_lease_id = before
        ttl_seconds = await self._etcd.renew_lease(lease_id)
        if not ttl_seconds:
            return None
        return await self._reply(node, lease_id, ttl_seconds, found.mod_revision)

    async def _entries(
        self, key: NodeKey | ReplicaKey, node: Node, *, joint: bool = False
    ) -> Entries:
        """Read etcd's entries for a node's name; for an offset service, those of all offset
        services.

        A store keeps its name when its log gets a second copy, and when the log returns to one
        copy: the entry of the same store then counts as the owner, as a node or as a replica.
        """
        as_node, keyspace = NodeKey(node.kind, node.name), self._keyspace
        as_log = LogKey(node.kind, node.name)
        is_only = node.kind == OFFSET_SERVICE
        key_ranges = (
            keyspace.nodes(node.kind) if is_only else keyspace.one(as_node),
            keyspace.replicas(node.kind, "" if is_only else node.name),
            keyspace.one(as_log),
        )
        if joint:
            _, found = await self._etcd.read_jointly(*key_ranges)
        else:
            found = await self._etcd.read_at_once(*key_ranges)
        nodes, replicas, logs = found
        state = next(iter(logs), None)
        others = [each for each in (*nodes, *replicas) if self._name_in(each.key) != node.name]
        if others:
            return Entries(others[0], 0, is_named=False, log=state)
        replicas_put = max((each.mod_revision for each in replicas), default=0)
        replica_key = keyspace.key(ReplicaKey(node.kind, node.name, node.store_id))
        same = [each for each in replicas if each.key == replica_key]
        if isinstance(key, NodeKey):
            if state is not None and is_only_voter(read_log(as_log, state.value), node.store_id):
                # Replicas that are not, or no longer, copies of its log.
                replicas = []
            holder = next(iter([*nodes, *same, *replicas]), None)
            return Entries(holder, replicas_put, is_named=False, log=state)
        before = [
            each for each in nodes if read_node(as_node, each.value).store_id == node.store_id
        ]
        is_named = bool(nodes) and not before
        return Entries(next(iter([*same, *before]), None), replicas_put, is_named, state)

    def _name_in(self, key: str) -> str:
        """Return the name of the node or log that a key belongs to."""
        found = self._keyspace.parse(key)
        assert isinstance(found, NodeKey | ReplicaKey)
        return found.name if isinstance(found, NodeKey) else found.log

    def _log_changes(
        self, request: RegisterNodeRequest, entries: Entries
    ) -> list[tuple[KeyCondition, PutKey]]:
        """Return a registration's change of its log's state, with its condition; empty if none."""
        node = request.node
        key = LogKey(node.kind, node.name)
        state: LogState | None = None
        if entries.log is not None:
            state = read_log(key, entries.log.value)
        if node.replica:
            has_queues = node.kind == BROKER and self._has_queues(node.name)
            name_exists = entries.is_named or has_queues
            is_new = request.lease_id == 0
            after = registered(state, node, request.replica, is_new=is_new, name_exists=name_exists)
        else:
            after = registered_without_replication(state, node)
        if after == state:
            return []
        if after.frozen and (state is None or not state.frozen):
            log.error("log %s is frozen: %s", node.name, after.frozen)
        name = self._keyspace.key(key)
        revision = 0 if entries.log is None else entries.log.mod_revision
        return [(unchanged(name, revision), PutKey(name, log_value(after)))]

    def _registration_operations(
        self, key: NodeKey | ReplicaKey, put: PutKey, entries: Entries
    ) -> tuple[list[KeyCondition], list[PutKey | DeleteKey]]:
        """Return the transaction that registers a node and removes the present owner."""
        holder = entries.holder
        if holder is not None:
            conditions = [unchanged(holder.key, holder.mod_revision)]
            if holder.key == put.key:
                return conditions, [put]
            return [*conditions, unchanged(put.key, 0)], [put, DeleteKey(only(holder.key))]
        if key.kind == OFFSET_SERVICE and isinstance(key, NodeKey):
            # Replicas that copy nothing may be registered already (`_entries`).
            no_other = not_put_since(self._keyspace.replicas(key.kind), entries.replicas_put)
            return [absent(self._keyspace.nodes(key.kind)), no_other], [put]
        return [unchanged(put.key, 0)], [put]

    async def _predecessor(self, node: Node, held: Node | None, holder: KeyValue | None) -> int:
        """Return the lease of the process that a node replaces and that may still serve; 0: none.

        A process that had the store at the same path is over, because only one at a time can open
        it. A process with a copy is not: it may learn of its end with its next renewal. So its
        lease is not revoked, and the node waits for it (`_reply`).
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
        """Return a name's registered node. Raises NodeNameTaken if it must not be replaced."""
        if holder is None:
            return None
        key = self._keyspace.parse(holder.key)
        assert isinstance(key, NodeKey | ReplicaKey)
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
        """Revoke a lease; a failure is only logged, because the lease expires anyway."""
        if lease_id:
            try:
                await self._etcd.revoke_lease(lease_id)
            except EtcdUnavailable as failure:
                log.info("lease %d was not revoked, it will expire: %s", lease_id, failure)

    async def _reply(
        self, node: Node, lease_id: int, ttl_seconds: float, revision: int
    ) -> RegisterNodeReply:
        before = node.predecessor_lease_id
        return RegisterNodeReply(
            lease_id=lease_id,
            ttl_seconds=ttl_seconds,
            renew_seconds=min(
                ttl_seconds / 3 if self._rounds is None else self._rounds.seconds_left(),
                ttl_seconds * RENEW_SHARE_MAX,
            ),
            revision=revision,
            predecessor_seconds=await self._etcd.lease_seconds_left(before) if before else 0.0,
        )


@lru_cache(maxsize=ENTRIES_COMPARED_MAX)
def predecessor_in(key: NodeKey | ReplicaKey, value: bytes, node_bytes: bytes) -> int | None:
    """Return the lease of the node's predecessor, from the node's entry in etcd; None if the node
    differs from the entry.

    Cached: usually both are unchanged, and JSON is half of an idle nameserver's CPU time.

    Args:
        key, value: key and value of the entry.
        node_bytes: the node, serialized.
    """
    node = Node.FromString(node_bytes)
    node.predecessor_lease_id = read_node(key, value).predecessor_lease_id
    return node.predecessor_lease_id if node_value(node) == value else None


def checked(node: Node) -> Node:
    """Return the node if its fields are valid. Raises InvalidArgument."""
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
    try:
        if node.ip_address:
            ip_address(node.ip_address)
    except ValueError:
        reason = f"advertise_ip {node.ip_address!r} is not an IP address"
        raise InvalidArgument(reason=reason) from None
    if not node.store_id:
        raise InvalidArgument(reason=f"node {node.name!r} has no store_id")
    if node.replica:
        check_replica(node)
    # Set by the route table for logs, not by nodes.
    node.ClearField("epoch")
    node.ClearField("replicas")
    return node


def check_replica(node: Node) -> None:
    """Raises InvalidArgument if a field of a replica is invalid."""
    if not NODE_NAME.fullmatch(node.replica):
        raise InvalidArgument(
            reason=f"{node.replica!r} is not a replica's name: 1 to 100 letters, digits and . _ -"
        )
    if not PATH_PART.fullmatch(node.store_id):
        raise InvalidArgument(reason=f"{node.store_id!r} is not a replica's id")
    if len(node.rack) > RACK_CHARACTERS_MAX:
        raise InvalidArgument(reason=f"a rack's name has at most {RACK_CHARACTERS_MAX} characters")


def key_of(node: Node) -> NodeKey | ReplicaKey:
    """Return the key of a node's entry in etcd."""
    if node.replica:
        return ReplicaKey(node.kind, node.name, node.store_id)
    return NodeKey(node.kind, node.name)
