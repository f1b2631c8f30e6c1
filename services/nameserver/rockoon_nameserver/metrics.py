"""Metrics of a nameserver: contents of the routes, and calls to etcd."""

from collections.abc import Iterable

from rockoon_nameserver.follower import EtcdFollower
from rockoon_nameserver.logs import CHANGES, Logs
from rockoon_nameserver.route_store import REQUEST_BOUNDS_MS, RouteStore
from rockoon_proto.v1.nameserver_pb2 import NodeKind
from rockoon_runtime.telemetry.metrics import Measurement, Metric, counter, gauge, histogram

TOPICS = gauge("rocketmq_topic_number", "Topics in the routes")
GROUPS = gauge("rocketmq_consumer_group_number", "Consumer groups in the routes")

NODES = gauge("rockoon_nodes", "Live nodes in the routes", "kind")
SUBSCRIPTIONS = gauge("rockoon_subscriptions", "Topics that groups have subscribed to")
KEYS = gauge("rockoon_etcd_keys", "Keys of the cluster in etcd")
ROUTE_REVISION = gauge("rockoon_route_revision", "Revision of the current routes")
LOGS = gauge("rockoon_logs", "Logs that etcd knows")
LOGS_WITHOUT_LEADER = gauge(
    "rockoon_logs_without_leader",
    "Logs without a leader: they have an election, wait for replicas, or their leader is not live",
)
LOGS_FROZEN = gauge(
    "rockoon_logs_frozen", "Logs that wait for `rockoon log adopt`, because etcd went back"
)
LOG_CHANGES = counter(
    "rockoon_log_changes_total",
    "Changes of logs made by this nameserver: election (started), leader (elected), hold (an "
    "election waits for an operator), loss (accepted), freeze, adoption",
    "change",
)
ETCD_REACHABLE = gauge("rockoon_etcd_reachable", "1 while etcd replies")
ETCD_AWAY = gauge("rockoon_etcd_away_seconds", "Seconds since etcd stopped replying, else 0")
ETCD_REQUESTS = histogram(
    "rockoon_etcd_request_milliseconds",
    "How long requests to etcd took, milliseconds; a watch until etcd accepted it",
    "request",
    "result",
    bounds=REQUEST_BOUNDS_MS,
)

TABLE = tuple(each for each in list(globals().values()) if isinstance(each, Metric))


class NameserverMetrics:
    """Measures a nameserver's metrics."""

    def __init__(self, follower: EtcdFollower, etcd: RouteStore, logs: Logs) -> None:
        self._follower = follower
        self._logs = logs
        self._etcd = etcd

    async def measure(self) -> Iterable[Measurement]:
        """Return the present value of each metric in `TABLE`."""
        table = self._follower.table
        counts, logs = table.counts(), table.logs.counts()
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
            LOGS.at(logs.all),
            LOGS_WITHOUT_LEADER.at(logs.without_leader),
            LOGS_FROZEN.at(logs.frozen),
            *(LOG_CHANGES.at(self._logs.changes[each], each) for each in CHANGES),
            ROUTE_REVISION.at(table.revision),
            ETCD_REACHABLE.at(self._follower.reachable),
            ETCD_AWAY.at(self._follower.away_seconds),
        ]
