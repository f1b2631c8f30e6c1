"""Frontend of a node: a service that follows the nameservers and is in the routes."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import NamedTuple

from rockoon_node.key_follower import KeyFollower
from rockoon_node.lease import Lease
from rockoon_node.nameservers import Nameservers
from rockoon_node.registration import Registration
from rockoon_proto.v1.nameserver_pb2 import Node, NodeKind, ReplicaFacts
from rockoon_runtime.access.rules import Rules
from rockoon_runtime.frontend import Frontend, ServiceSettings
from rockoon_runtime.settings import shared_settings
from rockoon_runtime.tls import client_tls
from rockoon_runtime.wire import GrpcServer


@dataclass(frozen=True, kw_only=True)
class NodeSettings(ServiceSettings):
    """The settings that every node has.

    Attributes:
        advertise: "host:port" that others are told; none means where it listens.
        advertise_external: the same for clients from another network; empty for none.
        nameservers: "host:port" of each.
    """

    advertise: str | None
    advertise_external: str
    nameservers: tuple[str, ...]


class AsReplica(NamedTuple):
    """How a node that has one of several copies of a log registers.

    Attributes:
        log: the log's name.
        rack: where it runs; empty when that is not told.
        facts: tells what it knows, with each call.
        name: the replica's; empty when it is the node's own.
    """

    log: str
    rack: str
    facts: Callable[[], ReplicaFacts]
    name: str = ""


class NodeFrontend(Frontend):
    """A node's frontend, with the nameservers that it was told of.

    Args:
        service: short name, for example "broker"; its package is `rockoon-` and that.
        settings: the service's.
        rules: what each of its calls needs.
        lease: its right to answer in its name: asked before each answer.

    Raises:
        SettingsError: a certificate or a cluster secret cannot be used, or no nameserver is named.

    Attributes:
        nameservers: to be closed by the service, when all is put away.
    """

    def __init__(self, service: str, settings: NodeSettings, rules: Rules, lease: Lease) -> None:
        super().__init__(service, settings, rules, lease.check)
        self._node_settings = settings
        self.nameservers = Nameservers(
            settings.nameservers, settings.cluster, client_tls(settings), self.credentials
        )
        self._lease = lease

    def address(self, server: GrpcServer) -> str:
        """ "host:port" that others are told."""
        return self._node_settings.advertise or server.address

    def key_follower(self, address: str) -> KeyFollower | None:
        """What keeps the gate's access keys up to date; None when access is off.

        Args:
            address: as of `address`.
        """
        if self.gate is None:
            return None
        external = self._node_settings.advertise_external
        return KeyFollower(self.nameservers, self.gate, address, external)

    def registration(
        self,
        kind: NodeKind,
        address: str,
        store_id: str,
        place: str,
        started_at_ms: int,
        cluster_id: Callable[[], int],
        as_replica: AsReplica | None = None,
    ) -> Registration:
        """The node's entry in the routes, to be kept there.

        Args:
            kind, store_id, place, started_at_ms: see `Node` in nameserver.proto.
            address: as of `address`.
            cluster_id: tells the cluster that the store belongs to; 0 for none.
            as_replica: None for a node that has its log, or what it owns, for itself.
        """
        settings = self._node_settings
        node = Node(
            kind=kind,
            name=settings.name,
            address=address,
            store_id=store_id,
            place=place,
            started_at_ms=started_at_ms,
            version=version(f"rockoon-{self._service}"),
            external_address=settings.advertise_external,
            shared_settings=shared_settings(settings),
        )
        if as_replica is None:
            return Registration(self.nameservers, node, self._lease, cluster_id)
        node.name, node.rack = as_replica.log, as_replica.rack
        node.replica = as_replica.name or settings.name
        return Registration(self.nameservers, node, self._lease, cluster_id, as_replica.facts)
