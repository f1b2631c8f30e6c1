"""Frontend of a node: server, nameservers, access keys, live settings and registration."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

from grpc import aio

from rockoon_core.protocol import LEVEL
from rockoon_node.key_follower import KeyFollower
from rockoon_node.nameservers import Nameservers
from rockoon_node.registration import NodeLease, Registration
from rockoon_node.settings_follower import SettingsFollower, store_setting
from rockoon_proto.v1.nameserver_pb2 import Node, NodeKind, ReplicaFacts
from rockoon_proto.v1.settings_pb2_grpc import add_SettingsServicer_to_server
from rockoon_rpc.server_call import no_objection
from rockoon_runtime import settings_service
from rockoon_runtime.access.rules import Rules
from rockoon_runtime.frontend import Frontend, ServiceSettings
from rockoon_runtime.settings import SettingsCheck, shared_settings
from rockoon_runtime.settings_checks import CHECKS, addresses, advertised, caller_files
from rockoon_runtime.settings_service import SettingsService
from rockoon_runtime.tls import client_tls
from rockoon_runtime.wire import GrpcServer


@dataclass(frozen=True, kw_only=True)
class NodeSettings(ServiceSettings):
    """Settings that every service of the cluster has.

    Attributes:
        advertise: "host:port" in the routes; None or empty: the address listened on.
        advertise_external: "host:port" in the routes for clients of another network; empty: none.
        advertise_ip: IP address of this process in the routes; empty: none.
        nameservers: "host:port" of each nameserver.
    """

    advertise: str | None
    advertise_external: str
    advertise_ip: str
    nameservers: tuple[str, ...]


# For --check-settings, of every node.
NODE_CHECKS: tuple[SettingsCheck, ...] = (
    *CHECKS,
    addresses(dialed=("advertise", "advertise_external", "nameservers")),
    advertised("listen", "advertise"),
    caller_files(client_tls, "tls"),
)


class AsReplica(NamedTuple):
    """Registration data of a node that is a replica of a log.

    Attributes:
        log: name of the log.
        rack: rack of the node; empty: unknown.
        facts: called for each registration; returns the replica's state.
        name: name of the replica; empty: the node's name.
    """

    log: str
    rack: str
    facts: Callable[[], ReplicaFacts]
    name: str = ""


class NodeFrontend(Frontend):
    """Frontend of a node, with its nameservers.

    Args:
        service: short name, for example "broker"; the package is `rockoon-SERVICE`.
        lease: checked before each reply.

    Raises:
        SettingsError: a certificate or a cluster secret cannot be used, or no nameserver is named.

    Attributes:
        nameservers: the service must close them last.
        live_settings: follows the live settings of the node.
    """

    def __init__(
        self, service: str, settings: NodeSettings, rules: Rules, lease: NodeLease
    ) -> None:
        rules = {**rules, **settings_service.RULES}
        super().__init__(service, settings, rules, lease.check)
        self._node_settings = settings
        self.nameservers = Nameservers(
            settings.nameservers, settings.cluster, client_tls(settings), self.credentials
        )
        self._lease = lease
        self.live_settings = SettingsFollower(self.nameservers, service, settings.name, self.live)
        # Ends the registration's use of live settings.
        self._end_of_registration: Callable[[], None] = no_objection
        self._settings_service = SettingsService(
            service, settings.name, self.live, partial(store_setting, self.nameservers)
        )

    def server(
        self,
        register: Callable[[aio.Server], None],
        service_names: Sequence[str],
        **options: Any,
    ) -> GrpcServer:
        """Return a server with the service Settings; see `Frontend.server`."""

        def register_all(server: aio.Server) -> None:
            register(server)
            add_SettingsServicer_to_server(self._settings_service, server)

        names = [*service_names, settings_service.SERVICE_NAME]
        return super().server(register_all, names, **options)

    def address(self, server: GrpcServer) -> str:
        """ "host:port" of the service in the routes."""
        return self._node_settings.advertise or server.address

    def key_follower(self, address: str) -> KeyFollower | None:
        """Create the follower that updates callers' access keys; None if access is off."""
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
        """Registration of the node.

        Args:
            kind, store_id, place, started_at_ms: see `Node` in nameserver.proto.
            address: see `address`.
            cluster_id: returns the id of the cluster that the store belongs to; 0: none.
            as_replica: data of a replica; None: the node is no replica.
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
            ip_address=settings.advertise_ip,
            shared_settings=shared_settings(settings),
            level=LEVEL,
        )
        facts = None
        if as_replica is not None:
            node.name, node.rack = as_replica.log, as_replica.rack
            node.replica = as_replica.name or settings.name
            facts = as_replica.facts
        registration = Registration(self.nameservers, node, self._lease, cluster_id, facts)

        def use(current: Any) -> None:
            # Only brokers have this setting.
            registration.set_drained(drained=getattr(current, "drained", False))

        self._end_of_registration()
        use(self.live.current)
        self._end_of_registration = self.live.follow(use, self.live.current)
        return registration
