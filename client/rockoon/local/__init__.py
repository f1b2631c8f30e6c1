"""A whole cluster on this machine: etcd, nameservers, brokers, offset service and gateway.

Each service is a process, as in production. This package starts, supervises and stops the
processes; it imports none of the services.
"""

from rockoon.local.cluster import LocalCluster
from rockoon.local.process import LocalClusterError, NodeEnded

__all__ = ["LocalCluster", "LocalClusterError", "NodeEnded"]
