"""Copies of logs, on the pages of those that have them."""

from tools.dashboards.expressions import last, rate
from tools.dashboards.panels import Panel, Query, Row


def copies_row(chosen: str) -> Row:
    """Panels of copies; `chosen` is whose."""
    return Row(
        "Copies",
        [
            Panel(
                "Behind the leader",
                "bytes",
                [
                    Query(
                        last("rockoon_replica_lag_bytes", chosen, "log, replica", "max"),
                        "{{log}} {{replica}}",
                    )
                ],
                "What a follower has not got.",
            ),
            Panel(
                "Behind the leader, for how long",
                "s",
                [
                    Query(
                        last("rockoon_replica_lag_seconds", chosen, "log, replica", "max"),
                        "{{log}} {{replica}}",
                    )
                ],
                "Since a follower last had everything.",
                limits=(10, 60),
            ),
            Panel(
                "Copies that are away",
                "none",
                [Query(last("rockoon_replicas_missing", chosen, "log", "max"), "{{log}}")],
                "Of those that count; with two of three away a log takes no messages.",
                limits=(1, 2),
            ),
            Panel(
                "Who leads",
                "none",
                [
                    Query(
                        last("rockoon_replica_leads", chosen, "log, node_id"),
                        "{{node_id}} {{log}}",
                    )
                ],
                "1 for the leader of a log.",
            ),
            Panel(
                "Epochs",
                "none",
                [Query(last("rockoon_replica_epoch", chosen, "log", "max"), "{{log}}")],
                "Grows with each election and each planned change of the leader.",
            ),
            Panel(
                "Takes appends",
                "none",
                [Query(last("rockoon_replica_appends_allowed", chosen, "log", "max"), "{{log}}")],
                "0 while too few copies are connected to the leader.",
            ),
            Panel(
                "Sound",
                "none",
                [
                    Query(
                        last("rockoon_replica_sound", chosen, "log, node_id"),
                        "{{node_id}} {{log}}",
                    )
                ],
                "0 for a copy that may have lost what it had acknowledged.",
            ),
            Panel(
                "Damaged records",
                "none",
                [
                    Query(
                        last("rockoon_replica_damaged_records", chosen, "log, node_id"),
                        "{{node_id}} {{log}}",
                    )
                ],
                "Above 0 until the records are rewritten from another copy.",
            ),
            Panel(
                "Committed",
                "bytes",
                [
                    Query(
                        last("rockoon_replica_committed_end_bytes", chosen, "log, node_id", "max"),
                        "{{node_id}} {{log}}",
                    )
                ],
                "Up to where a copy knows its log committed.",
            ),
            Panel(
                "Not ready",
                "percentunit",
                [
                    Query(
                        "sum by (log, node_id) (increase("
                        f"rockoon_replica_unready_seconds_total{{{chosen}}}[5m])) / 300",
                        "{{node_id}} {{log}}",
                    )
                ],
                "Share of five minutes without a leader that commits, or behind it.",
            ),
            Panel(
                "Cut off copies",
                "Bps",
                [
                    Query(
                        rate("rockoon_replica_truncated_bytes_total", chosen, "log, node_id"),
                        "{{node_id}} {{log}}",
                    )
                ],
                "Never acknowledged bytes of a former leader.",
            ),
            Panel(
                "Repaired records",
                "cps",
                [
                    Query(
                        rate("rockoon_replica_repaired_records_total", chosen, "log, node_id"),
                        "{{node_id}} {{log}}",
                    )
                ],
                "Damaged records, rewritten from another copy: look at the machine's disk.",
            ),
            Panel(
                "Checked records",
                "Bps",
                [
                    Query(
                        rate("rockoon_replica_scrubbed_bytes_total", chosen, "log, node_id"),
                        "{{node_id}} {{log}}",
                    )
                ],
                "Read by the scrub, which compares committed records with their checksums.",
            ),
        ],
    )
