"""Settings of the offset service."""

import dataclasses
from pathlib import Path

from rockoon_replica.settings import CopySettings
from rockoon_runtime.settings import setting


@dataclasses.dataclass(frozen=True, slots=True)
class OffsetSettings(CopySettings):
    """Settings of the offset service; each field has its own description."""

    cluster: str = setting(
        "rockoon", "name of the cluster; nameservers of another cluster refuse this service"
    )
    name: str = setting("offset", "name of this service among the nodes of the cluster")
    listen: str = setting("127.0.0.1:10912", "host:port to listen on; port 0: any free port")
    advertise: str = setting(
        "", "host:port that the routes name for this service (empty: the address listened on)"
    )
    advertise_external: str = setting(
        "",
        "host:port that the routes name to clients of a nameserver's external_listen (empty: these "
        "clients cannot call this service)",
    )
    advertise_ip: str = setting(
        "",
        "IP address of this process in the routes, which callers of the advertised name try before "
        "they ask DNS (empty: they ask DNS)",
    )
    nameservers: tuple[str, ...] = setting(
        ("127.0.0.1:9876",), "nameservers, host:port,host:port,..."
    )
    store_path: Path = setting(  # noqa: RUF009 - `setting` returns a dataclass field
        Path("offset-store"), "directory of the journal"
    )
    new_queue_rule: str = setting(
        "exact",
        "rule that decides whether a queue is new to a group, for groups without a rule of their "
        "own: exact (by etcd revisions) or classic (RocketMQ 4.x: by messages in memory)",
        choices=("exact", "classic"),
    )
    heartbeat_seconds: float = setting(
        3.0, "interval of the heartbeats of members, seconds", minimum=0.01, maximum=3600
    )
    lease_seconds: float = setting(
        10.0,
        "time without a heartbeat after which a member is removed from its group, seconds",
        minimum=0.05,
        maximum=86400,
    )
    client_lease_seconds: float = setting(
        60.0,
        "how long a push consumer of a gateway holds its messages after its last call to a "
        "gateway, seconds; gateways report their clients six times in this time",
        minimum=1,
        maximum=3600,
    )
    handover_seconds_max: float = setting(
        10.0,
        "how long a member may keep a queue that another member requests, seconds (0: not at all)",
        minimum=0,
        maximum=3600,
    )
    broker_timeout_seconds: float = setting(
        2.0, "time limit of a call to a broker, seconds", minimum=0.05, maximum=60
    )
    route_wait_seconds: float = setting(
        2.0,
        "how long a request waits for the route revision that its sender has seen, seconds",
        minimum=0,
        maximum=60,
    )
    plan_seconds: float = setting(
        600.0, "how long the plan of a reset can be applied, seconds", minimum=1, maximum=86400
    )
    export_seconds: float = setting(
        5.0,
        "interval in which changed config/<broker>/consumerOffset.json are written, seconds (0: "
        "never); longer if writing would use more than a twentieth of a CPU core",
        minimum=0,
        maximum=86400,
    )
    journal_bytes_max: int = setting(
        64 << 20,
        "bytes of changes after which the journal begins a new file with its state",
        minimum=4096,
    )
    accept_etcd_cluster_id: str = setting(
        "",
        "cluster id (16 hexadecimal digits, see the error text of the refusal) of an etcd that may "
        "replace the etcd that progress belongs to. Topics and groups are then matched by name; "
        "the new etcd must have all topics and groups with progress",
    )
    broadcast_member_days_max: float = setting(
        30.0,
        "how long the progress of a broadcasting member is kept while the member is absent, days "
        "(0: no limit)",
        minimum=0,
        maximum=36_500,
    )
    progress_entries_max: int = setting(
        100_000,
        "maximum offsets in one listing or export; with more offsets, callers must name a group",
        minimum=1,
    )
    watchers_max: int = setting(20_000, "maximum open WatchGroup streams", minimum=1)
