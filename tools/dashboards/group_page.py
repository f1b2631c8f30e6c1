"""Consumer groups: how far behind they are, and what they can lose."""

from tools.dashboards.expressions import CLUSTER, GROUP, last, rate
from tools.dashboards.panels import Dashboard, Panel, Query, Row

GROUPS = Dashboard(
    "rockoon-groups",
    "Rockoon: consumer groups and lag",
    [
        Row(
            "How far behind",
            [
                Panel(
                    "Messages behind",
                    "short",
                    [
                        Query(
                            last("rocketmq_consumer_lag_messages", GROUP, "consumer_group, topic"),
                            "{{consumer_group}} {{topic}}",
                        )
                    ],
                    "Stored and not committed.",
                    width=12,
                ),
                Panel(
                    "Age of the oldest that is not committed",
                    "ms",
                    [
                        Query(
                            last(
                                "rocketmq_consumer_lag_latency",
                                GROUP,
                                "consumer_group, topic",
                                "max",
                            ),
                            "{{consumer_group}} {{topic}}",
                        )
                    ],
                    "Grows by a second each second when nothing is handled.",
                    width=12,
                ),
                Panel(
                    "Ready",
                    "short",
                    [
                        Query(
                            last(
                                "rocketmq_consumer_ready_messages", GROUP, "consumer_group, topic"
                            ),
                            "{{consumer_group}} {{topic}}",
                        )
                    ],
                    "Stored and not pulled: more members or queues would help.",
                ),
                Panel(
                    "In flight",
                    "short",
                    [
                        Query(
                            last(
                                "rocketmq_consumer_inflight_messages",
                                GROUP,
                                "consumer_group, topic",
                            ),
                            "{{consumer_group}} {{topic}}",
                        )
                    ],
                    "Pulled and not committed: the handlers have them.",
                ),
                Panel(
                    "Age of the oldest that is not pulled",
                    "ms",
                    [
                        Query(
                            last(
                                "rocketmq_consumer_queueing_latency",
                                GROUP,
                                "consumer_group, topic",
                                "max",
                            ),
                            "{{consumer_group}} {{topic}}",
                        )
                    ],
                    "How long messages wait for a reader.",
                ),
            ],
        ),
        Row(
            "What can be lost",
            [
                Panel(
                    "Retention reaches unread messages in",
                    "s",
                    [
                        Query(
                            last(
                                "rockoon_consumer_time_to_loss_seconds",
                                GROUP,
                                "consumer_group, topic",
                                "min",
                            ),
                            "{{consumer_group}} {{topic}}",
                        )
                    ],
                    "No line while nothing can be lost.",
                    width=12,
                ),
                Panel(
                    "Deleted unread",
                    "short",
                    [
                        Query(
                            last("rockoon_consumer_lost_messages", GROUP, "consumer_group, topic"),
                            "{{consumer_group}} {{topic}}",
                        )
                    ],
                    "Between what the group has committed and the first message that is left.",
                    width=12,
                ),
            ],
        ),
        Row(
            "Members",
            [
                Panel(
                    "Members",
                    "none",
                    [
                        Query(
                            last(
                                "rocketmq_consumer_connections",
                                GROUP,
                                "consumer_group, consume_mode",
                            ),
                            "{{consumer_group}} {{consume_mode}}",
                        )
                    ],
                    "That send heartbeats.",
                ),
                Panel(
                    "Given out",
                    "cps",
                    [
                        Query(
                            rate("rocketmq_messages_out_total", GROUP, "consumer_group, topic"),
                            "{{consumer_group}} {{topic}}",
                        )
                    ],
                    "By brokers; what is read again counts again.",
                ),
                Panel(
                    "Bytes given out",
                    "Bps",
                    [
                        Query(
                            rate("rocketmq_throughput_out_total", GROUP, "consumer_group"),
                            "{{consumer_group}}",
                        )
                    ],
                    "Of messages as they are stored.",
                ),
                Panel(
                    "Queues whose lag is not known",
                    "none",
                    [
                        Query(
                            last(
                                "rockoon_consumer_lag_unknown_queues",
                                GROUP,
                                "consumer_group, topic",
                            ),
                            "{{consumer_group}} {{topic}}",
                        )
                    ],
                    "Their broker does not answer; other values are without them.",
                    width=12,
                ),
                Panel(
                    "Groups without values",
                    "none",
                    [Query(f"max(rockoon_lag_skipped_groups{{{CLUSTER}}})", "groups")],
                    "There were too many for one export.",
                    width=12,
                ),
            ],
        ),
    ],
    [("cluster", "rockoon_route_revision"), ("consumer_group", "rocketmq_consumer_lag_messages")],
)
