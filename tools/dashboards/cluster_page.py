"""The whole cluster on one page: what to look at first."""

from tools.dashboards.expressions import CLUSTER, last, quantile, rate
from tools.dashboards.panels import Dashboard, Panel, Query, Row

LAG = last("rocketmq_consumer_lag_messages", CLUSTER, "consumer_group")
LOSS = last("rockoon_consumer_time_to_loss_seconds", CLUSTER, "consumer_group", "min")
RATE_IN = f"sum(rate(rocketmq_throughput_in_total{{{CLUSTER}}}[$__rate_interval]))"
RATE_OUT = f"sum(rate(rocketmq_throughput_out_total{{{CLUSTER}}}[$__rate_interval]))"
IN_ROUTES = f'{CLUSTER}, node_type="nameserver"'

ALL_OF_IT = Dashboard(
    "rockoon-cluster",
    "Rockoon: cluster",
    [
        Row(
            "Now",
            [
                Panel(
                    "Live nodes",
                    "none",
                    [Query(last("rockoon_nodes", CLUSTER, "kind", "max"), "{{kind}}")],
                    "Brokers and offset services that are in the routes.",
                    kind="stat",
                    width=6,
                ),
                Panel(
                    "Brokers that take calls",
                    "none",
                    [Query(f"sum(rockoon_ready{{{CLUSTER}}})", "ready")],
                    "Less than there are: one recovers its store, or stops.",
                    kind="stat",
                    width=4,
                ),
                Panel(
                    "Nearest loss",
                    "s",
                    [Query(f"min(rockoon_consumer_time_to_loss_seconds{{{CLUSTER}}})", "loss in")],
                    "When retention may delete the first message that a group has not read. Empty "
                    "while nothing can be lost.",
                    kind="stat",
                    width=5,
                    limits=(21_600, 3_600),
                ),
                Panel(
                    "Lost before they were read",
                    "short",
                    [Query(f"sum(rockoon_consumer_lost_messages{{{CLUSTER}}})", "messages")],
                    "Messages that retention deleted while a group had not read them.",
                    kind="stat",
                    width=5,
                    limits=(1, 1),
                ),
                Panel(
                    "etcd away",
                    "s",
                    [Query(f"max(rockoon_etcd_away_seconds{{{CLUSTER}}})", "longest")],
                    "How long a nameserver has had no answer from etcd.",
                    kind="stat",
                    width=4,
                    limits=(5, 30),
                ),
            ],
        ),
        Row(
            "Traffic",
            [
                Panel(
                    "Messages in",
                    "cps",
                    [Query(rate("rocketmq_messages_in_total", CLUSTER, "topic"), "{{topic}}")],
                    "Taken from producers, by topic.",
                    stacked=True,
                ),
                Panel(
                    "Messages out",
                    "cps",
                    [
                        Query(
                            rate("rocketmq_messages_out_total", CLUSTER, "consumer_group"),
                            "{{consumer_group}}",
                        )
                    ],
                    "Given to readers, by group.",
                    stacked=True,
                ),
                Panel(
                    "Bytes",
                    "Bps",
                    [
                        Query(
                            RATE_IN,
                            "in",
                        ),
                        Query(
                            RATE_OUT,
                            "out",
                        ),
                    ],
                    "Of messages as they are stored.",
                ),
            ],
        ),
        Row(
            "Consumers",
            [
                Panel(
                    "Lag",
                    "short",
                    [
                        Query(
                            f"topk(10, {LAG})",
                            "{{consumer_group}}",
                        )
                    ],
                    "Messages stored and not committed, of the ten groups with most.",
                ),
                Panel(
                    "Time to loss",
                    "s",
                    [
                        Query(
                            f"bottomk(10, {LOSS})",
                            "{{consumer_group}}",
                        )
                    ],
                    "The ten groups that retention reaches first.",
                ),
                Panel(
                    "Why readers start where they do",
                    "cps",
                    [Query(rate("rockoon_starts_total", CLUSTER, "reason"), "{{reason}}")],
                    "Queues on which a reader was told where to start.",
                    stacked=True,
                ),
            ],
        ),
        Row(
            "Nameservers and etcd",
            [
                Panel(
                    "Requests to etcd, p99",
                    "ms",
                    [
                        Query(
                            quantile(0.99, "rockoon_etcd_request_milliseconds", CLUSTER, "request"),
                            "{{request}}",
                        )
                    ],
                    "Above 100 ms etcd is slow for leases that have to be renewed.",
                ),
                Panel(
                    "Requests to etcd that failed",
                    "cps",
                    [
                        Query(
                            rate(
                                "rockoon_etcd_request_milliseconds_count",
                                f'{CLUSTER}, result="failure"',
                                "node_id, request",
                            ),
                            "{{node_id}} {{request}}",
                        )
                    ],
                    "Without an answer, or refused.",
                ),
                Panel(
                    "Route revision",
                    "none",
                    [
                        Query(
                            last("rockoon_route_revision", CLUSTER, "node_type, node_id", "max"),
                            "{{node_type}} {{node_id}}",
                        )
                    ],
                    "Who stays below the others follows no changes.",
                ),
                Panel(
                    "Topics and groups",
                    "none",
                    [
                        Query(
                            f"max(rocketmq_topic_number{{{IN_ROUTES}}})",
                            "topics",
                        ),
                        Query(
                            f"max(rocketmq_consumer_group_number{{{IN_ROUTES}}})",
                            "groups",
                        ),
                        Query(f"max(rockoon_subscriptions{{{CLUSTER}}})", "subscriptions"),
                    ],
                    "In the routes.",
                    width=12,
                ),
                Panel(
                    "Logs",
                    "none",
                    [
                        Query(f"max(rockoon_logs{{{CLUSTER}}})", "logs"),
                        Query(f"max(rockoon_logs_without_leader{{{CLUSTER}}})", "without a leader"),
                        Query(f"max(rockoon_logs_frozen{{{CLUSTER}}})", "frozen"),
                    ],
                    "Without a leader for more than seconds, or frozen: `rockoon log list`.",
                    width=12,
                ),
                Panel(
                    "Changes of logs",
                    "none",
                    [
                        Query(
                            "sum by (change) "
                            f"(increase(rockoon_log_changes_total{{{CLUSTER}}}[5m]))",
                            "{{change}}",
                        )
                    ],
                    "In five minutes: elections, leaders put in, losses accepted, logs frozen and "
                    "adopted.",
                    width=12,
                ),
                Panel(
                    "Memory of the processes",
                    "bytes",
                    [
                        Query(
                            'max by (job, instance) (process_resident_memory_bytes{job="rockoon"})',
                            "{{instance}}",
                        )
                    ],
                    "Resident, of every service that Prometheus asks.",
                    width=12,
                ),
            ],
        ),
    ],
    [("cluster", "rockoon_route_revision")],
)
