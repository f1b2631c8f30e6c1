"""Settings of the gateway."""

import dataclasses
from pathlib import Path
from typing import ClassVar

from rockoon_runtime.frontend import ServiceSettings
from rockoon_runtime.settings import setting


@dataclasses.dataclass(frozen=True, slots=True)
class GatewaySettings(ServiceSettings):
    """Settings of a gateway; each field has its own description."""

    REMOVED: ClassVar = {
        "plain_listen": "set plain_connections = true; clients without TLS use the port of `listen`"
    }

    cluster: str = setting("rockoon", "name of the cluster; nameservers of another one refuse")
    name: str = setting("gateway", "name of this gateway, shown to operators and in metrics")
    listen: str = setting("127.0.0.1:8081", "host:port to listen on; port 0: any free port")
    nameservers: tuple[str, ...] = setting(
        ("127.0.0.1:9876",), "nameservers, host:port,host:port,..."
    )
    cluster_tls: str = setting(
        "same",
        "TLS to services of the cluster: same (like `tls`, with its files), off, on or mutual; "
        "RocketMQ's clients have no certificates, so a gateway of a mutual cluster has tls = on",
        choices=("same", "off", "on", "mutual"),
    )
    cluster_tls_ca: Path | None = setting(  # noqa: RUF009 - a field, made once
        None, "PEM file: certificate authorities for the services' certificates (empty: tls_ca)"
    )
    cluster_tls_certificate: Path | None = setting(  # noqa: RUF009 - a field, made once
        None, "PEM file: client certificate for services, with its chain (empty: tls_certificate)"
    )
    cluster_tls_key: Path | None = setting(  # noqa: RUF009 - a field, made once
        None, "PEM file: key of cluster_tls_certificate (empty: tls_key)"
    )
    plain_connections: bool = setting(
        False,
        "with tls = on or mutual: also accept connections without TLS at the same port; otherwise "
        "the port accepts TLS only",
    )
    scaler_listen: str = setting(
        "",
        "host:port of the external scaler, from which KEDA reads lag (empty: none); it serves "
        "callers without a key, also with access = on",
    )
    admin_listen: str = setting(
        "",
        "host:port at which `rockoon gateway config` calls this gateway (empty: none, and it only "
        "follows live settings); port 0: any free port",
    )
    admin_advertise: str = setting(
        "", "host:port of admin_listen for operators (empty: the address listened on)"
    )
    admin_tls_server_name: str = setting(
        "",
        "name in this gateway's certificate that operators require, if the certificate does not "
        "have the host of admin_advertise (empty: this host)",
    )
    reuse_port: bool = setting(
        False, "let several gateways of one host listen on the same port (SO_REUSEPORT)"
    )
    create_groups: bool = setting(
        True, "create consumer groups on first use; otherwise they must exist"
    )
    create_topics: bool = setting(False, "create topics on first use; otherwise they must exist")
    client_secrets: Path | None = setting(  # noqa: RUF009 - a field, made once
        None,
        "file with the secrets of access keys, one line 'NAME SECRET' each; needed with access = "
        "on, because the cluster stores no secrets that check the signatures of these clients",
    )
    body_bytes_max: int = setting(
        4 << 20, "largest body of a message, bytes", minimum=1024, maximum=4 << 20, live=True
    )
    delay_seconds_max: float = setting(
        86_400.0,
        "how far ahead a delivery time may be, seconds; brokers have their own limit",
        minimum=1,
        maximum=10**9,
        live=True,
    )
    send_seconds_max: float = setting(
        5.0,
        "how long to try to store a message, seconds; clients time out after 3 and send again",
        minimum=0.1,
        maximum=3600,
    )
    buffer_bytes_max: int = setting(
        256 << 20,
        "bytes of messages that wait for brokers; above it sends are refused",
        minimum=16 << 20,
    )
    client_seconds_max: float = setting(
        120.0,
        "how long a silent client counts as connected, seconds",
        minimum=1,
        maximum=86_400,
        live=True,
    )
    checked_topics_max: int = setting(
        1000,
        "maximum of topics whose producers get transaction checks here; each needs a stream to "
        "every broker",
        minimum=1,
        maximum=100_000,
        live=True,
    )
    lite_topics_max: int = setting(
        10_000,
        "maximum of lite topics of all parents, half of them created by subscriptions; more are "
        "refused",
        minimum=0,
        maximum=1_000_000,
        live=True,
    )
    lite_look_seconds: float = setting(
        60.0,
        "interval of scans for expired lite topics (lite.topic.expiration of the parent), seconds",
        minimum=0.1,
        maximum=86_400,
        live=True,
    )
