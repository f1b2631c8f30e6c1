"""Address of a cluster, with the TLS files and the access key of connections to it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rockoon.net import tls as net_tls
from rockoon.net.access import AccessKey
from rockoon.net.addresses import parse_addresses
from rockoon.net.blocking import BlockingConnection
from rockoon.net.connection import Connection
from rockoon.net.tls import Tls
from rockoon_core.channels import Dialer

if TYPE_CHECKING:
    import rockoon.sync


@dataclass(frozen=True, slots=True)
class ClusterEndpoint:
    """Nameservers, and how a job connects to them and to the brokers. Can be pickled.

    Its text and its representation have no secret.

    Args:
        nameservers: addresses, in the form of `rockoon.connect`.
        tls: None uses the environment of the process.
        access: None uses the environment of the process.
    """

    nameservers: str
    tls: Tls | None = None
    access: AccessKey | None = None

    def __str__(self) -> str:
        return self.nameservers

    def dialer(self) -> Dialer:
        """Return a dialer for calls without a connection to the nameservers.

        Raises:
            InvalidArgument: a TLS file or the access key is invalid.
        """
        return net_tls.dialer(self.tls, self.access)


AnyEndpoint = ClusterEndpoint | str
"""An endpoint, or addresses of nameservers, which use TLS and access key of the environment."""


def endpoint_of(endpoint: AnyEndpoint) -> ClusterEndpoint:
    """Return the endpoint itself, or one for the nameservers in a text."""
    return endpoint if isinstance(endpoint, ClusterEndpoint) else ClusterEndpoint(endpoint)


def open_connection(endpoint: AnyEndpoint) -> BlockingConnection[Connection]:
    """Return a blocking connection to a cluster without producers and consumers; entering its
    context connects.
    """
    to = endpoint_of(endpoint)
    nameservers = parse_addresses(to.nameservers)
    return BlockingConnection(lambda: Connection(nameservers, tls=to.tls, access=to.access))


def connect(endpoint: AnyEndpoint, **settings: Any) -> "rockoon.sync.Cluster":
    """Return a blocking connection to a cluster; see `rockoon.sync.connect`.

    Args:
        endpoint: endpoint of the cluster.
        settings: further arguments of `rockoon.sync.connect`.
    """
    # The import costs more CPU than the plan of a read, which does not need it.
    import rockoon.sync

    to = endpoint_of(endpoint)
    return rockoon.sync.connect(to.nameservers, tls=to.tls, access=to.access, **settings)
