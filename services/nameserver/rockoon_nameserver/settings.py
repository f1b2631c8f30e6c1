"""Settings of the nameserver."""

import dataclasses

from rockoon_runtime.settings import setting


@dataclasses.dataclass(frozen=True, slots=True)
class NameserverSettings:
    """See each line; nameservers of one cluster differ in `name`, `listen` and `advertise`."""

    cluster: str = setting("rockoon", "the cluster's name; etcd may hold several clusters")
    name: str = setting("nameserver", "this nameserver's name, for people")
    listen: str = setting("127.0.0.1:9876", "host:port to listen on; port 0 takes a free one")
    advertise: str = setting("", "host:port told to others (empty: the address listened on)")
    etcd: tuple[str, ...] = setting(("127.0.0.1:2379",), "etcd endpoints, host:port,host:port,...")
    etcd_user: str = setting("", "user to authenticate to etcd as (empty: no authentication)")
    etcd_password: str = setting("", "password of that user", secret=True)
    etcd_timeout_seconds: float = setting(
        2.0, "how long a call to etcd may take, seconds", minimum=0.1, maximum=60
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
