"""Metrics of a nameserver: contents of the routes, and calls to etcd."""

from collections.abc import Iterable

from rockoon_nameserver.etcd import REQUEST_BOUNDS_MS, Etcd
from rockoon_nameserver.follower import RouteFollower
from rockoon_proto.v1.nameserver_pb2 import NodeKind
from rockoon_runtime.telemetry.metrics import Measurement, Metric, gauge, histogram

TOPICS = gauge("rocketmq_topic_number", "Topics in the routes")
GROUPS = gauge("rocketmq_consumer_group_number", "Consumer groups in the routes")

NODES = gauge("rockoon_nodes", "Live nodes in the routes", "kind")
SUBSCRIPTIONS = gauge("rockoon_subscriptions", "Topics that groups have subscribed to")
KEYS = gauge("rockoon_etcd_keys", "Keys of the cluster in etcd")
ROUTE_REVISION = gauge("rockoon_route_revision", "Revision of the routes that are in force")
ETCD_REACHABLE = gauge("rockoon_etcd_reachable", "1 while etcd answers")
ETCD_AWAY = gauge("rockoon_etcd_away_seconds", "How long etcd has not answered, seconds")
ETCD_REQUESTS = histogram(
    "rockoon_etcd_request_milliseconds",
    "How long requests to etcd took, milliseconds; a watch until etcd accepted it",
    "request",
    "result",
    bounds=REQUEST_BOUNDS_MS,
)

TABLE = tuple(each for each in list(globals().values()) if isinstance(each, Metric))


class NameserverMetrics:
    """Measures a nameserver."""

    def __init__(self, follower: RouteFollower, etcd: Etcd) -> None:
        self._follower = follower
        self._etcd = etcd

    async def measure(self) -> Iterable[Measurement]:
        """Values of `TABLE`."""
        table = self._follower.table
        counts = table.counts()
        nodes = [
            NODES.at(counts.nodes[kind], NodeKind.Name(kind).lower())
            for kind in NodeKind.values()
            if kind
        ]
        requests = [
            ETCD_REQUESTS.spread(
                times.counts, times.total_ms, request, "success" if answered else "failure"
            )
            for (request, answered), times in self._etcd.request_times.items()
        ]
        return [
            *requests,
            TOPICS.at(counts.topics),
            GROUPS.at(counts.groups),
            SUBSCRIPTIONS.at(counts.subscriptions),
            *nodes,
            KEYS.at(table.key_count),
            ROUTE_REVISION.at(table.revision),
            ETCD_REACHABLE.at(self._follower.reachable),
            ETCD_AWAY.at(self._follower.away_seconds),
        ]
