"""Versions: the protocol of nodes and clients, its gRPC metadata, and supported etcd versions."""

import re

CLUSTER_METADATA_KEY = "rockoon-cluster"
"""Metadata key with the name of the cluster that the caller addresses."""

AGENT_METADATA_KEY = "rockoon-agent-bin"
"""Metadata key of an AppendStream with its `Agent`: the program that opened it."""

ABSENT_REVISION = -1
"""Value of `expected_modified_revision` for a live setting that must not be stored yet."""

PROTOCOL = 1
"""Version of the protocol between nodes, incremented by changes that older nodes would
misinterpret. Nameservers accept nodes of their own version and of older ones, and must be upgraded
first."""

LEVEL = 1
"""Feature level of this program, incremented by each new behaviour that services of the former
level cannot read. The cluster has a level of its own, in etcd: an operator raises it when all
services support it (`rockoon upgrade finish`), and a behaviour above it is off. See ADR 106.

    1   the offset service's journal stores the holder of messages in flight, the reason of a failed
        delivery, and the receiver of the last acknowledgement
"""

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
