"""Versions: the protocol of nodes and clients, its gRPC metadata, and supported etcd versions."""

import re

CLUSTER_METADATA_KEY = "rockoon-cluster"
"""Metadata key with the name of the cluster that the caller addresses."""

PROTOCOL = 1
"""Version of the protocol between nodes, incremented by changes that older nodes would
misinterpret. Nameservers accept nodes of their own version and of older ones, and must be upgraded
first."""

# 3.5.0 to 3.5.2 lose acknowledged writes when they are killed (etcd-io/etcd#13766); in versions up
# to 3.5.5, and in 3.4 before 3.4.22, members may diverge. Source: the project's changelogs.
RECOMMENDED = "3.4.22 or later of 3.4, or 3.5.6 or later"


def is_recommended(version: str) -> bool:
    """Return whether an etcd of this version reliably keeps messages and progress.

    Args:
        version: version that etcd reports, for example "3.5.21"; an unreadable one is not
            recommended.
    """
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    numbers = tuple(map(int, found.groups())) if found else (0, 0, 0)
    return (3, 4, 22) <= numbers < (3, 5, 0) or numbers >= (3, 5, 6)
