"""Spark jobs, by the files that they leave and by what brokers see of them."""

from tools.dashboards.expressions import CLUSTER, last
from tools.dashboards.panels import Dashboard, Panel, Query, Row

SUCCESS = "max by (command) (rockoon_spark_job_succeeded_timestamp_seconds)"

JOBS = Dashboard(
    "rockoon-spark",
    "Rockoon: Spark jobs",
    [
        Row(
            "Last run of each command",
            [
                Panel(
                    "Did what it was to do",
                    "none",
                    [Query("min by (command) (rockoon_spark_job_succeeded)", "{{command}}")],
                    "1 when it did.",
                    kind="stat",
                    width=12,
                    limits=(1, 0.5),
                ),
                Panel(
                    "Last success, how long ago",
                    "s",
                    [
                        Query(
                            f"time() - {SUCCESS}",
                            "{{command}}",
                        )
                    ],
                    "Grows while no job runs, too.",
                    kind="stat",
                    width=12,
                ),
                Panel(
                    "Duration",
                    "s",
                    [Query("max by (command) (rockoon_spark_job_seconds)", "{{command}}")],
                    "From its start to its end, Spark's own start included.",
                ),
                Panel(
                    "Log read",
                    "bytes",
                    [Query("max by (command) (rockoon_spark_job_log_bytes)", "{{command}}")],
                    "By each run.",
                ),
                Panel(
                    "Records",
                    "short",
                    [Query("max by (command) (rockoon_spark_job_records)", "{{command}}")],
                    "That each run went through.",
                ),
                Panel(
                    "Problems found",
                    "none",
                    [Query("max by (command) (rockoon_spark_job_problems)", "{{command}}")],
                    "Each is a sentence in the job's output.",
                    width=12,
                ),
                Panel(
                    "Since the last end",
                    "s",
                    [
                        Query(
                            "time() - max by (command) (rockoon_spark_job_ended_timestamp_seconds)",
                            "{{command}}",
                        )
                    ],
                    "Whether it did what it was to do or not.",
                    width=12,
                ),
            ],
        ),
        Row(
            "What brokers see of it",
            [
                Panel(
                    "Log held for compaction",
                    "bytes",
                    [
                        Query(
                            last("rockoon_compaction_held_bytes", CLUSTER, "node_id"), "{{node_id}}"
                        )
                    ],
                    "Falls when a generation is in force.",
                ),
                Panel(
                    "Oldest message that waits for a compaction",
                    "s",
                    [
                        Query(
                            last("rockoon_compaction_waiting_seconds", CLUSTER, "node_id", "max"),
                            "{{node_id}}",
                        )
                    ],
                    "Stays below the time between two runs of compact.",
                ),
                Panel(
                    "Records of the generation in force",
                    "short",
                    [Query(last("rockoon_compaction_records", CLUSTER, "node_id"), "{{node_id}}")],
                    "What compaction has left.",
                ),
                Panel(
                    "Generation refused",
                    "none",
                    [
                        Query(
                            last("rockoon_compaction_refused", CLUSTER, "node_id", "max"),
                            "{{node_id}}",
                        )
                    ],
                    "1 when the newest did not pass the broker's verification.",
                ),
            ],
        ),
    ],
    [("cluster", "rockoon_route_revision")],
)
