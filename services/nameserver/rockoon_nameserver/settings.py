"""Settings of the nameserver."""

import dataclasses
from pathlib import Path

from rockoon_runtime.frontend import ServiceSettings
from rockoon_runtime.settings import setting


@dataclasses.dataclass(frozen=True, slots=True)
class NameserverSettings(ServiceSettings):
    """See each line; nameservers of one cluster differ in `name`, `listen` and `advertise`."""

    cluster: str = setting("rockoon", "the cluster's name; etcd may hold several clusters")
    name: str = setting("nameserver", "this nameserver's name, for people")
    listen: str = setting("127.0.0.1:9876", "host:port to listen on; port 0 takes a free one")
    advertise: str = setting("", "host:port told to others (empty: the address listened on)")
    external_listen: str = setting(
        "",
        "host:port to listen on for clients from another network; they are told the addresses that "
        "brokers and the offset service have for them, advertise_external (empty: none)",
    )
    etcd: tuple[str, ...] = setting(("127.0.0.1:2379",), "etcd endpoints, host:port,host:port,...")
    routes_path: Path | None = setting(  # noqa: RUF009 - a field, made once
        None,
        "file in which this nameserver keeps the routes itself, and asks no etcd: for a cluster "
        "with no other nameserver (empty: etcd has them)",
    )
    etcd_user: str = setting("", "user to authenticate to etcd as (empty: no authentication)")
    etcd_password: str = setting("", "password of that user", secret=True)
    etcd_timeout_seconds: float = setting(
        2.0, "how long a call to etcd may take, seconds", minimum=0.1, maximum=60
    )
    etcd_version_check: str = setting(
        "warn",
        "what to do about an etcd that may lose what it has acknowledged, as 3.5.0 to 3.5.5: warn, "
        "or refuse to start",
        choices=("warn", "refuse"),
    )
    etcd_tls: str = setting(
        "off", "on: etcd is called over TLS, and has to show its certificate", choices=("off", "on")
    )
    etcd_tls_ca: Path | None = setting(  # noqa: RUF009 - a field, made once
        None, "PEM file: the authorities that sign etcd's certificates"
    )
    etcd_tls_certificate: Path | None = setting(  # noqa: RUF009 - a field, made once
        None, "PEM file: our certificate, for an etcd that asks for one; read again when renewed"
    )
    etcd_tls_key: Path | None = setting(  # noqa: RUF009 - a field, made once
        None, "PEM file: that certificate's key, not encrypted"
    )
    etcd_tls_server_name: str = setting(
        "", "name that etcd's certificates must bear (empty: the host in the endpoint)"
    )
    tls_node_name: str = setting(
        "{name}",
        "with tls = mutual: what the certificate of a broker or offset service must bear, as "
        "common name or DNS name, to register; {name} is the node's name, * any text",
    )
    node_lease_seconds: int = setting(
        10,
        "how long a broker that falls silent stays in the routes, seconds",
        minimum=1,
        maximum=600,
    )
    route_log_revisions_max: int = setting(
        10_000, "changes remembered for watchers; older ones get a snapshot", minimum=1
    )
    start_timeout_seconds: float = setting(
        0.0, "give up when etcd does not answer for so long at start, seconds (0: never)", minimum=0
    )
