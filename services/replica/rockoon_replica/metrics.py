"""Metrics of a copy of a log, and of its followers while it leads."""

import asyncio
from collections.abc import Iterator
from typing import Any

from rockoon_replica.log_copy import LogCopy
from rockoon_replica.member import Role
from rockoon_replica.replica import Replica
from rockoon_replica.standing import lagging
from rockoon_runtime.telemetry.metrics import Measurement, Metric, counter, gauge

LEADS = gauge("rockoon_replica_leads", "1 while this copy of the log leads, otherwise 0", "log")
EPOCH = gauge("rockoon_replica_epoch", "Highest epoch that this copy has promised", "log")
COMMITTED = gauge(
    "rockoon_replica_committed_end_bytes", "Committed end of the log, as this copy knows", "log"
)
UNREADY = counter(
    "rockoon_replica_unready_seconds_total",
    "Total time in which this copy had no leader that commits, or lacked its records, seconds",
    "log",
)
TRUNCATED = counter(
    "rockoon_replica_truncated_bytes_total",
    "Bytes cut from this copy because the leader had other bytes, or none",
    "log",
)
SOUND = gauge(
    "rockoon_replica_sound",
    "1 while this copy has all records that it ever acknowledged; 0 after a loss, until it has "
    "copied them again",
    "log",
)
DAMAGED = gauge(
    "rockoon_replica_damaged_records",
    "Damaged records of this copy that were not rewritten yet",
    "log",
)
REPAIRED = counter(
    "rockoon_replica_repaired_records_total",
    "Damaged records of this copy that were rewritten from another copy",
    "log",
)
SCRUBBED = counter(
    "rockoon_replica_scrubbed_bytes_total",
    "Bytes of committed records that this copy has read and compared with their checksums",
    "log",
)
APPENDS = gauge(
    "rockoon_replica_appends_allowed",
    "1 while enough copies are connected to this leader to accept appends, otherwise 0; reported "
    "by the leader",
    "log",
)
MISSING = gauge(
    "rockoon_replicas_missing",
    "Copies that the log should have and that are no voters, or are not connected to the leader; "
    "reported by the leader",
    "log",
)
LAG_BYTES = gauge(
    "rockoon_replica_lag_bytes",
    "Bytes that a follower has not acknowledged, as its leader knows",
    "log",
    "replica",
)
LAG_SECONDS = gauge(
    "rockoon_replica_lag_seconds",
    "Time since a follower had all records of its leader, seconds",
    "log",
    "replica",
)

TABLE = tuple(each for each in list(globals().values()) if isinstance(each, Metric))


def of_copy(copy: LogCopy[Any]) -> Iterator[Measurement]:
    """Yield the metrics of one copy of a log; those of a replica only if one runs."""
    name, record = copy.log_name, copy.record
    now = asyncio.get_running_loop().time()
    yield UNREADY.at(record.unready_seconds(now), name)
    yield TRUNCATED.at(record.truncated_bytes, name)
    yield REPAIRED.at(record.checks.repaired_records, name)
    yield SCRUBBED.at(record.checks.scrubbed_bytes, name)
    replica = copy.replica
    if replica is not None:
        yield LEADS.at(replica.role is Role.LEADING, name)
        yield EPOCH.at(replica.member.facts.promised, name)
        yield COMMITTED.at(replica.replicated.committed_end, name)
        yield SOUND.at(replica.member.facts.sound, name)
        yield DAMAGED.at(len(replica.member.facts.damaged), name)
        if replica.epoch:
            yield APPENDS.at(replica.appends_allowed, name)
        yield from of_followers(replica, copy, now)


def of_followers(replica: Replica, copy: LogCopy[Any], now: float) -> Iterator[Measurement]:
    if replica.state is None or replica.role is not Role.LEADING:
        return
    state, voters = replica.state, replica.state.config.in_sync
    copies = state.copies if state.wish is None else state.wish.copies
    missing = max(0, copies - len(voters))
    for each in lagging(replica, now):
        missing += each.replica in voters and not each.connected
        if each.bytes is not None and each.seconds is not None:
            name = copy.name_of(each.replica)
            yield LAG_BYTES.at(each.bytes, copy.log_name, name)
            yield LAG_SECONDS.at(each.seconds, copy.log_name, name)
    yield MISSING.at(missing, copy.log_name)
