"""Settings of a service whose log can be replicated."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rockoon_core.errors import WrongIdentity
from rockoon_core.pem_files import PemError, try_certificate
from rockoon_node.frontend import NODE_CHECKS, NodeSettings
from rockoon_runtime.settings import SettingsCheck, SettingsError, setting
from rockoon_runtime.settings_checks import directory
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
        """Name of this process in log lines and metrics, distinct from those of the log's other
        replicas: the replica's own name, or the log's name at this host."""
        if self.copies == 1:
            return self.name
        return self.replica or f"{self.name}@{socket.gethostname()}"


def name_in_certificate(settings: CopySettings) -> Iterator[str]:
    """Yield a fault if other replicas of the log would refuse this service's certificate."""
    certificate, key = settings.tls_certificate, settings.tls_key
    if settings.copies == 1 or settings.tls != "mutual" or certificate is None or key is None:
        return
    try:
        found = try_certificate(certificate, key)
        NodeIdentities(settings.tls_node_name).check(settings.name, (found.name, *found.hosts))
    except PemError:
        # Another check reports it.
        return
    except (ValueError, WrongIdentity) as failure:
        yield f"tls_certificate = {certificate}: {failure}"


# For --check-settings, of every service with a log.
LOG_CHECKS: tuple[SettingsCheck, ...] = (
    *NODE_CHECKS,
    directory("store_path"),
    name_in_certificate,
)


def replica_identities(settings: CopySettings) -> NodeIdentities | None:
    """Return the certificates required from replicas, if they have any. Raises SettingsError."""
    if settings.copies == 1 or settings.tls != "mutual":
        return None
    try:
        return NodeIdentities(settings.tls_node_name)
    except ValueError as failure:
        raise SettingsError(str(failure)) from failure
