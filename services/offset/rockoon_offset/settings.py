"""Settings of the offset service."""

import dataclasses
from pathlib import Path

from rockoon_replica.settings import CopySettings
from rockoon_runtime.settings import setting


@dataclasses.dataclass(frozen=True, slots=True)
class OffsetSettings(CopySettings):
    """See each line."""

    cluster: str = setting("rockoon", "the cluster's name; nameservers of another one refuse")
    name: str = setting("offset", "this service's name among the cluster's nodes")
    listen: str = setting("127.0.0.1:10912", "host:port to listen on; port 0 takes a free one")
    advertise: str = setting("", "host:port told to others (empty: the address listened on)")
    advertise_external: str = setting(
        "",
        "host:port told to clients that came in by a nameserver's external_listen (empty: they "
        "cannot call this service)",
    )
    nameservers: tuple[str, ...] = setting(
        ("127.0.0.1:9876",), "nameservers, host:port,host:port,..."
    )
    store_path: Path = setting(  # noqa: RUF009 - a field, made once
        Path("offset-store"), "directory of the journal"
    )
    new_queue_rule: str = setting(
        "exact",
        "how 'this queue is new to the group' is decided for groups that do not say: exact (by "
        "etcd revisions) or classic (RocketMQ 4.x: by memory)",
        choices=("exact", "classic"),
    )
    heartbeat_seconds: float = setting(
        3.0, "how often members are to call, seconds", minimum=0.01, maximum=3600
    )
    lease_seconds: float = setting(
        10.0, "how long a silent member stays in its group, seconds", minimum=0.05, maximum=86400
    )
    client_lease_seconds: float = setting(
        60.0,
        "how long a push consumer of a gateway holds its messages after a gateway has heard it "
        "last, seconds; gateways report it every sixth part of that",
        minimum=1,
        maximum=3600,
    )
    handover_seconds_max: float = setting(
        10.0,
        "how long a member may keep a queue that another one asks for, seconds (0: not at all)",
        minimum=0,
        maximum=3600,
    )
    broker_timeout_seconds: float = setting(
        2.0, "how long a broker may take to answer, seconds", minimum=0.05, maximum=60
    )
    route_wait_seconds: float = setting(
        2.0,
        "how long a request waits for routes that its sender has seen, seconds",
        minimum=0,
        maximum=60,
    )
    plan_seconds: float = setting(
        600.0, "how long a reset's plan is kept, seconds", minimum=1, maximum=86400
    )
    export_seconds: float = setting(
        5.0,
        "how often config/<broker>/consumerOffset.json is written when it has changed, seconds "
        "(0: never); less often where that would take more than a twentieth of a core",
        minimum=0,
        maximum=86400,
    )
    journal_bytes_max: int = setting(
        64 << 20,
        "size of the journal at which it begins again with the present state, bytes",
        minimum=4096,
    )
    accept_etcd_cluster_id: str = setting(
        "",
        "identity (16 hexadecimal digits, as the refusal names it) of an etcd that may replace the "
        "one that progress belongs to: its topics and groups are then taken for those of the same "
        "names. It must have all that have progress",
    )
    broadcast_member_days_max: float = setting(
        30.0,
        "how long the own progress of a member that reads everything is kept while the member is "
        "away, days (0: for ever)",
        minimum=0,
        maximum=36_500,
    )
    progress_entries_max: int = setting(
        100_000, "offsets in one listing or export; more are asked for by group", minimum=1
    )
    watchers_max: int = setting(20_000, "WatchGroup streams at once", minimum=1)
