"""A whole cluster on this machine: etcd, nameservers, brokers and the offset service.

Every service is a process of its own, as in production; this package starts, watches and stops
them and imports none of them.
"""

from rockoon.local.cluster import LocalCluster
from rockoon.local.process import LocalClusterError, NodeEnded

__all__ = ["LocalCluster", "LocalClusterError", "NodeEnded"]
