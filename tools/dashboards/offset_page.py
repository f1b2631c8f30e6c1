"""The offset service: progress and its journal."""

from tools.dashboards.copies_row import copies_row
from tools.dashboards.expressions import OFFSET, last, mean, quantile, rate
from tools.dashboards.panels import Dashboard, Panel, Query, Row

OFFSETS = Dashboard(
    "rockoon-offset",
    "Rockoon: offset service",
    [
        Row(
            "Progress",
            [
                Panel(
                    "Commits",
                    "cps",
                    [Query(rate("rockoon_commits_total", OFFSET, "node_id"), "{{node_id}}")],
                    "Of one queue each, that were taken.",
                ),
                Panel(
                    "Commits refused",
                    "cps",
                    [Query(rate("rockoon_commits_refused_total", OFFSET, "error"), "{{error}}")],
                    "By error.",
                    stacked=True,
                ),
                Panel(
                    "Commits fenced",
                    "cps",
                    [Query(rate("rockoon_commits_fenced_total", OFFSET, "node_id"), "{{node_id}}")],
                    "Another reader has the queue. A few at every rebalance; many without one mean "
                    "that members are taken for dead while they work.",
                ),
                Panel(
                    "Receivers, message by message",
                    "cps",
                    [
                        Query(
                            rate(f"rockoon_{name}_total", OFFSET, "node_id"),
                            f"{said} {{{{node_id}}}}",
                        )
                        for name, said in (
                            ("acquired_messages", "acquired"),
                            ("acknowledged_messages", "acknowledged"),
                            ("visibility_changes", "put off"),
                            ("redelivered_messages", "redelivered"),
                            ("dead_deliveries", "dead"),
                            ("acknowledgements_refused", "refused"),
                        )
                    ],
                    "Redelivered without being put off: receivers take longer than they said.",
                ),
                Panel(
                    "Starts by reason",
                    "cps",
                    [Query(rate("rockoon_starts_total", OFFSET, "reason"), "{{reason}}")],
                    "`rockoon offsets why` says it for one queue.",
                    stacked=True,
                    width=12,
                ),
                Panel(
                    "Calls by method",
                    "cps",
                    [
                        Query(
                            rate("rocketmq_rpc_latency_count", OFFSET, "request_code"),
                            "{{request_code}}",
                        )
                    ],
                    "That have one answer.",
                    stacked=True,
                    width=12,
                ),
            ],
        ),
        Row(
            "Journal",
            [
                Panel(
                    "Sync of the journal, mean",
                    "s",
                    [
                        Query(
                            mean(
                                "rockoon_journal_sync_seconds_total",
                                "rockoon_journal_syncs_total",
                                OFFSET,
                                "node_id",
                            ),
                            "{{node_id}}",
                        )
                    ],
                    "Writing included: what a commit waits for.",
                ),
                Panel(
                    "Changes written",
                    "cps",
                    [
                        Query(
                            rate("rockoon_journal_batches_total", OFFSET, "node_id"), "{{node_id}}"
                        )
                    ],
                    "Of progress.",
                ),
                Panel(
                    "Changes refused: no room",
                    "none",
                    [Query(last("rockoon_journal_shortage", OFFSET, "node_id"), "{{node_id}}")],
                    "1 while the disk of the journal is full.",
                ),
                Panel(
                    "Size since the last snapshot",
                    "bytes",
                    [Query(last("rockoon_journal_bytes", OFFSET, "node_id"), "{{node_id}}")],
                    "What a start reads.",
                ),
                Panel(
                    "Calls, p99",
                    "ms",
                    [
                        Query(
                            quantile(0.99, "rocketmq_rpc_latency", OFFSET, "request_code"),
                            "{{request_code}}",
                        )
                    ],
                    "From a call's arrival to its answer.",
                    width=12,
                ),
                Panel(
                    "Processor time",
                    "percentunit",
                    [
                        Query(
                            'sum by (job, instance) (rate(process_cpu_seconds_total{job="rockoon"}'
                            "[$__rate_interval]))",
                            "{{instance}}",
                        )
                    ],
                    "Of every service: one process uses one processor, and is full near 1.",
                    width=12,
                    limits=(0.7, 0.9),
                ),
            ],
        ),
        copies_row(OFFSET),
        Row(
            "Processes",
            [
                Panel(
                    "Ready",
                    "none",
                    [Query(last("rockoon_ready", OFFSET, "node_id"), "{{node_id}}")],
                    "1 for who takes calls, or is level with who does.",
                ),
                Panel(
                    "Disk used",
                    "percentunit",
                    [
                        Query(
                            last("rockoon_disk_used_ratio", OFFSET, "node_id", "max"), "{{node_id}}"
                        )
                    ],
                    "Share of the partition of the journal.",
                    limits=(0.8, 0.9),
                ),
            ],
        ),
    ],
    [("cluster", "rockoon_route_revision"), ("node_id", "rockoon_disk_used_ratio")],
)
