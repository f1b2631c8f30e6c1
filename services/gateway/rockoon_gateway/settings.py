"""Settings of the gateway."""

import dataclasses
from pathlib import Path
from typing import ClassVar

from rockoon_runtime.frontend import ServiceSettings
from rockoon_runtime.settings import setting


@dataclasses.dataclass(frozen=True, slots=True)
class GatewaySettings(ServiceSettings):
    """See each line."""

    REMOVED: ClassVar = {
        "plain_listen": "set plain_connections = true; clients without TLS use the port of `listen`"
    }

    cluster: str = setting("rockoon", "the cluster's name; nameservers of another one refuse")
    name: str = setting("gateway", "this gateway's name, for people and metrics")
    listen: str = setting("127.0.0.1:8081", "host:port to listen on; port 0 takes a free one")
    nameservers: tuple[str, ...] = setting(
        ("127.0.0.1:9876",), "nameservers, host:port,host:port,..."
    )
    cluster_tls: str = setting(
        "same",
        "how services of the cluster are called: same (as `tls` says, with its files), off, on or "
        "mutual; RocketMQ's clients show no certificates, so a gateway of a mutual cluster has tls "
        "= on",
        choices=("same", "off", "on", "mutual"),
    )
    cluster_tls_ca: Path | None = setting(  # noqa: RUF009 - a field, made once
        None, "PEM file: the authorities that sign the services' certificates (empty: tls_ca)"
    )
    cluster_tls_certificate: Path | None = setting(  # noqa: RUF009 - a field, made once
        None, "PEM file: what services are shown, with its chain (empty: tls_certificate)"
    )
    cluster_tls_key: Path | None = setting(  # noqa: RUF009 - a field, made once
        None, "PEM file: the key of cluster_tls_certificate (empty: tls_key)"
    )
    plain_connections: bool = setting(
        False,
        "with tls = on or mutual: accept connections without TLS at the same port; otherwise the "
        "port accepts TLS only",
    )
    scaler_listen: str = setting(
        "",
        "host:port of the external scaler that KEDA asks for lag (empty: there is none); whoever "
        "can reach it is answered, also with access = on",
    )
    reuse_port: bool = setting(
        False, "let several gateways of one host listen on the same port (SO_REUSEPORT)"
    )
    create_groups: bool = setting(
        True, "create consumer groups when they are first seen; otherwise they have to be there"
    )
    create_topics: bool = setting(
        False, "create topics when they are first seen; otherwise they have to be there"
    )
    client_secrets: Path | None = setting(  # noqa: RUF009 - a field, made once
        None,
        "file with the secrets of access keys, a line 'NAME SECRET' each: the clients' signatures "
        "cannot be checked by what the cluster keeps of a secret; needed with access = on",
    )
    body_bytes_max: int = setting(
        4 << 20, "largest body of a message, bytes", minimum=1024, maximum=4 << 20
    )
    delay_seconds_max: float = setting(
        86_400.0,
        "how far ahead a delivery time may be, seconds; brokers have a bound of their own",
        minimum=1,
        maximum=10**9,
    )
    send_seconds_max: float = setting(
        5.0,
        "how long to try to store a message; clients give up after 3 and send again, seconds",
        minimum=0.1,
        maximum=3600,
    )
    buffer_bytes_max: int = setting(
        256 << 20,
        "messages that wait for brokers; beyond it sends are refused, bytes",
        minimum=16 << 20,
    )
    client_seconds_max: float = setting(
        120.0,
        "how long a client that says nothing counts as connected, seconds",
        minimum=1,
        maximum=86_400,
    )
    checked_topics_max: int = setting(
        1000,
        "topics whose producers are asked about transactions at once; each takes a stream to every "
        "broker",
        minimum=1,
        maximum=100_000,
    )
    lite_topics_max: int = setting(
        10_000,
        "lite topics of all parents together, half of them made by subscriptions; beyond it those "
        "that are not there are refused",
        minimum=0,
        maximum=1_000_000,
    )
    lite_look_seconds: float = setting(
        60.0,
        "how often lite topics are looked for that have expired (lite.topic.expiration of their "
        "parent), seconds",
        minimum=0.1,
        maximum=86_400,
    )
