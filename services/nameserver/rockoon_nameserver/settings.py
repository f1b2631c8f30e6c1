"""Settings of the nameserver."""

import dataclasses
from pathlib import Path

from rockoon_runtime.frontend import ServiceSettings
from rockoon_runtime.settings import setting


@dataclasses.dataclass(frozen=True, slots=True)
class NameserverSettings(ServiceSettings):
    """Settings of a nameserver; `name`, `listen` and `advertise` differ within a cluster."""

    cluster: str = setting("rockoon", "the cluster's name; etcd may hold several clusters")
    name: str = setting("nameserver", "name of this nameserver, shown to operators")
    listen: str = setting("127.0.0.1:9876", "host:port to listen on; port 0: any free port")
    advertise: str = setting("", "host:port that is announced (empty: the address listened on)")
    external_listen: str = setting(
        "",
        "host:port to listen on for clients from another network; routes sent there have the "
        "advertise_external addresses of brokers and the offset service (empty: none)",
    )
    etcd: tuple[str, ...] = setting(("127.0.0.1:2379",), "etcd endpoints, host:port,host:port,...")
    routes_path: Path | None = setting(  # noqa: RUF009 - a field, made once
        None,
        "file in which this nameserver keeps the routes, instead of etcd: for a cluster with one "
        "nameserver (empty: routes are in etcd)",
    )
    import_routes: Path | None = setting(  # noqa: RUF009 - a field, made once
        None,
        "file of routes that `rockoon backup restore` wrote; this nameserver stores it in a new "
        "etcd before it serves: set it for one nameserver, and remove it afterwards (empty: none)",
    )
    etcd_user: str = setting("", "user to authenticate to etcd as (empty: no authentication)")
    etcd_password: str = setting("", "password of that user", secret=True)
    etcd_timeout_seconds: float = setting(
        2.0, "time limit of a call to etcd, seconds", minimum=0.1, maximum=60
    )
    etcd_version_check: str = setting(
        "warn",
        "action on an etcd version that may lose acknowledged writes, such as 3.5.0 to 3.5.5: "
        "warn, or refuse to start",
        choices=("warn", "refuse"),
    )
    etcd_tls: str = setting(
        "off", "on: TLS to etcd, which must show its certificate", choices=("off", "on")
    )
    etcd_tls_ca: Path | None = setting(  # noqa: RUF009 - a field, made once
        None, "PEM file: certificate authorities for etcd's certificates"
    )
    etcd_tls_certificate: Path | None = setting(  # noqa: RUF009 - a field, made once
        None, "PEM file: client certificate for etcd, if it asks for one; renewals are read"
    )
    etcd_tls_key: Path | None = setting(  # noqa: RUF009 - a field, made once
        None, "PEM file: key of that certificate, not encrypted"
    )
    etcd_tls_server_name: str = setting(
        "", "name that etcd's certificates must have (empty: the host in the endpoint)"
    )
    tls_node_name: str = setting(
        "{name}",
        "with tls = mutual: common name or DNS name that the certificate of a broker or offset "
        "service must have to register; {name} is the node's name, * any text",
    )
    node_lease_seconds: int = setting(
        10,
        "how long a broker stays in the routes without a renewal, seconds",
        minimum=1,
        maximum=600,
    )
    route_log_revisions_max: int = setting(
        10_000, "changes kept for watchers; older watchers get a snapshot", minimum=1
    )
    start_timeout_seconds: float = setting(
        0.0, "exit if etcd does not reply for this long at start, seconds (0: wait)", minimum=0
    )
