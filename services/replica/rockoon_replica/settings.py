"""Settings of a service whose log can be replicated."""

from dataclasses import dataclass
from pathlib import Path

from rockoon_node.frontend import NodeSettings
from rockoon_runtime.settings import SettingsError, setting
from rockoon_runtime.tls import NodeIdentities


@dataclass(frozen=True, kw_only=True)
class CopySettings(NodeSettings):
    """Settings of a replica; `name` is also the name of the log.

    Attributes:
        store_path: directory of the log.
    """

    store_path: Path
    copies: int = setting(
        1,
        "replicas of a new log of this name, 1 to 7; if more than one, this process is one of "
        "them, and serves clients while it leads",
        minimum=1,
        maximum=7,
    )
    replica: str = setting(
        "", "name of this process among the replicas of its log, with copies > 1 (empty: `name`)"
    )
    scrub_bytes_per_second: int = setting(
        4 << 20,
        "with copies > 1: rate at which this copy verifies the checksums of committed records, "
        "bytes/s (0: it does not)",
        minimum=0,
        maximum=1 << 30,
    )
    record_committed_seconds: float = setting(
        5.0,
        "with copies > 1: interval in which a leader records its committed end in etcd, seconds; "
        "an election whose best copy ends before that waits for an operator",
        minimum=0.1,
        maximum=3600.0,
    )
    tls_node_name: str = setting(
        "{name}",
        "with tls = mutual: name that the certificate of another replica of this log must have, "
        "as on the nameservers",
    )

    @property
    def process_name(self) -> str:
        """Name of this process, distinct from those of the log's other replicas."""
        return self.replica if self.copies > 1 and self.replica else self.name


def replica_identities(settings: CopySettings) -> NodeIdentities | None:
    """Return the certificates required from other replicas; None if replicas have no certificates.
    Raises SettingsError.
    """
    if settings.copies == 1 or settings.tls != "mutual":
        return None
    try:
        return NodeIdentities(settings.tls_node_name)
    except ValueError as failure:
        raise SettingsError(str(failure)) from failure
