"""Brokers: what producers and readers wait for, the store, messages aside."""

from tools.dashboards.copies_row import copies_row
from tools.dashboards.expressions import BROKER, last, mean, quantile, quantiles, rate
from tools.dashboards.panels import Dashboard, Panel, Query, Row

BROKERS = Dashboard(
    "rockoon-broker",
    "Rockoon: brokers",
    [
        Row(
            "What producers wait for",
            [
                Panel(
                    "Appends",
                    "ms",
                    quantiles(
                        "rocketmq_rpc_latency",
                        f'{BROKER}, request_code="append"',
                        "node_id",
                        "{{node_id}}",
                    ),
                    "From a batch's arrival to its answer; with flush = sync the sync is in it.",
                ),
                Panel(
                    "Sync, mean",
                    "s",
                    [
                        Query(
                            mean(
                                "rockoon_sync_wait_seconds_total",
                                "rockoon_appended_batches_total",
                                BROKER,
                                "node_id",
                            ),
                            "{{node_id}}",
                        )
                    ],
                    "From a batch's place in the log until it is on the disk.",
                ),
                Panel(
                    "Sync, longest",
                    "s",
                    [
                        Query(
                            last("rockoon_sync_wait_seconds_max", BROKER, "node_id", "max"),
                            "{{node_id}}",
                        )
                    ],
                    "Of the last ten to twenty seconds.",
                    limits=(0.5, 2),
                ),
                Panel(
                    "Batches",
                    "cps",
                    [
                        Query(
                            rate("rockoon_appended_batches_total", BROKER, "node_id"), "{{node_id}}"
                        )
                    ],
                    "Whose sender waited for a sync.",
                ),
                Panel(
                    "Message size, p99",
                    "bytes",
                    [Query(quantile(0.99, "rocketmq_message_size", BROKER, "topic"), "{{topic}}")],
                    "As stored. The buckets are RocketMQ's: 1 KiB, 4 KiB, 512 KiB and above.",
                ),
                Panel(
                    "Calls that were refused",
                    "cps",
                    [
                        Query(
                            rate(
                                "rocketmq_rpc_latency_count",
                                f'{BROKER}, response_code!="success"',
                                "request_code, response_code",
                            ),
                            "{{request_code}} {{response_code}}",
                        )
                    ],
                    "By method and error.",
                    stacked=True,
                ),
            ],
        ),
        Row(
            "What readers wait for",
            [
                Panel(
                    "Pulls that do not wait",
                    "ms",
                    quantiles(
                        "rocketmq_rpc_latency",
                        f'{BROKER}, request_code="pull", is_long_polling="false"',
                        "node_id",
                        "{{node_id}}",
                    ),
                    "Pulls that may wait last as long as nothing comes.",
                ),
                Panel(
                    "Pulls that wait now",
                    "none",
                    [Query(last("rockoon_waiting_pulls", BROKER, "node_id"), "{{node_id}}")],
                    "Readers that have all there is.",
                ),
                Panel(
                    "Queues that pull streams read",
                    "none",
                    [Query(last("rockoon_pull_subscriptions", BROKER, "node_id"), "{{node_id}}")],
                    "Each counts once for each stream.",
                ),
                Panel(
                    "Not visible to readers yet",
                    "bytes",
                    [
                        Query(
                            last("rocketmq_storage_dispatch_behind_bytes", BROKER, "node_id"),
                            "{{node_id}}",
                        )
                    ],
                    "Written and waiting for the sync, or for their place in the queues.",
                ),
            ],
        ),
        Row(
            "Store",
            [
                Panel(
                    "Disk",
                    "percentunit",
                    [
                        Query(
                            last("rockoon_disk_used_ratio", BROKER, "node_id", "max"), "{{node_id}}"
                        )
                    ],
                    "Of the store's partition.",
                    limits=(0.75, 0.85),
                ),
                Panel(
                    "Disk full in",
                    "s",
                    [
                        Query(
                            last("rockoon_disk_pressure_seconds", BROKER, "node_id", "min"),
                            "{{node_id}}",
                        )
                    ],
                    "At the log's growth rate. Then messages are refused, or the oldest deleted.",
                ),
                Panel(
                    "CommitLog files deleted",
                    "cps",
                    [
                        Query(
                            rate("rockoon_deleted_log_files_total", BROKER, "node_id, reason"),
                            "{{node_id}} {{reason}}",
                        )
                    ],
                    "By reason.",
                ),
                Panel(
                    "Unread messages deleted",
                    "cps",
                    [
                        Query(
                            rate("rockoon_deleted_unread_messages_total", BROKER, "node_id"),
                            "{{node_id}}",
                        )
                    ],
                    "That a known group had not read, counted for each group.",
                ),
                Panel(
                    "Log appended",
                    "Bps",
                    [Query(rate("rockoon_log_end_bytes_total", BROKER, "node_id"), "{{node_id}}")],
                    "With everything that the broker itself writes.",
                ),
                Panel(
                    "Log kept",
                    "bytes",
                    [
                        Query(
                            f"{last('rockoon_log_end_bytes_total', BROKER, 'node_id')} - "
                            f"{last('rockoon_log_min_offset_bytes', BROKER, 'node_id')}",
                            "{{node_id}}",
                        )
                    ],
                    "From its first byte to its last.",
                ),
                Panel(
                    "Not synced",
                    "bytes",
                    [
                        Query(
                            last("rocketmq_storage_flush_behind_bytes", BROKER, "node_id"),
                            "{{node_id}}",
                        )
                    ],
                    "What a crash of the machine would take.",
                ),
                Panel(
                    "Oldest message",
                    "ms",
                    [
                        Query(
                            last("rocketmq_storage_message_reserve_time", BROKER, "node_id", "max"),
                            "{{node_id}}",
                        )
                    ],
                    "How far back readers can go.",
                ),
                Panel(
                    "Index behind",
                    "bytes",
                    [Query(last("rockoon_index_lag_bytes", BROKER, "node_id"), "{{node_id}}")],
                    "Queries by key do not see these yet.",
                ),
                Panel(
                    "Last recovery",
                    "s",
                    [
                        Query(
                            last("rockoon_recovery_seconds", BROKER, "node_id", "max"),
                            "{{node_id}}",
                        )
                    ],
                    "How long the last opening of the store took.",
                    kind="bargauge",
                ),
                Panel(
                    "Records recovered",
                    "short",
                    [
                        Query(
                            last("rockoon_recovery_records", BROKER, "node_id", "max"),
                            "{{node_id}}",
                        )
                    ],
                    "Read behind the recovery point by the last opening.",
                    kind="bargauge",
                ),
                Panel(
                    "Kept for compaction",
                    "bytes",
                    [
                        Query(
                            last("rockoon_compaction_held_bytes", BROKER, "node_id"), "{{node_id}}"
                        )
                    ],
                    "Log that retention must keep until a compaction has it.",
                ),
                Panel(
                    "Kept for copies",
                    "bytes",
                    [Query(last("rockoon_retention_held_bytes", BROKER, "node_id"), "{{node_id}}")],
                    "Log that retention would delete if all copies that count had it.",
                ),
            ],
        ),
        copies_row(BROKER),
        Row(
            "Messages aside",
            [
                Panel(
                    "Delayed, waiting",
                    "short",
                    [Query(last("rocketmq_timing_messages", BROKER, "node_id"), "{{node_id}}")],
                    "Messages that wait for their time.",
                ),
                Panel(
                    "Delayed, how late",
                    "s",
                    [
                        Query(
                            last("rockoon_timer_lag_seconds", BROKER, "node_id", "max"),
                            "{{node_id}}",
                        )
                    ],
                    "Of the last that reached their topic.",
                ),
                Panel(
                    "Half messages",
                    "short",
                    [Query(last("rocketmq_half_messages", BROKER, "node_id"), "{{node_id}}")],
                    "Transactions that nobody has ended.",
                ),
                Panel(
                    "Transactions ended",
                    "cps",
                    [
                        Query(
                            rate("rocketmq_commit_messages_total", BROKER, "node_id"),
                            "{{node_id}} commit",
                        ),
                        Query(
                            rate("rocketmq_rollback_messages_total", BROKER, "node_id"),
                            "{{node_id}} rollback",
                        ),
                    ],
                    "By how they ended.",
                ),
                Panel(
                    "Returned for a retry",
                    "cps",
                    [
                        Query(
                            rate("rockoon_messages_returned_total", BROKER, "node_id"),
                            "{{node_id}}",
                        )
                    ],
                    "Their handler raised.",
                ),
                Panel(
                    "Dead letters",
                    "cps",
                    [
                        Query(
                            rate("rocketmq_send_to_dlq_messages_total", BROKER, "node_id"),
                            "{{node_id}}",
                        )
                    ],
                    "Failed as often as their group allows.",
                ),
            ],
        ),
    ],
    [("cluster", "rockoon_route_revision"), ("node_id", "rockoon_ready")],
)
