"""Capacity model of a cluster of N brokers, M shards of the offset service and K nameservers.

Input: measured costs. Output: the load of each resource, that is, how much one process needs and
the limit. The resource with the largest share of its limit saturates first. Pure arithmetic; every
load explains its computation. The model assumes that costs are proportional; `foretold` tests this
assumption at the last point of an axis.

Shards do not exist: the offset service is one process, with a second one on standby. The model
assumes that groups are divided evenly among M shards.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.capacity.point import Part, Point, slope
from rockoon.consumer.pull import EMPTY_PAUSE_SECONDS_MAX, PullLimits
from rockoon_broker.settings import BrokerSettings
from rockoon_offset.settings import OffsetSettings
from rockoon_rpc.limits import MESSAGE_BYTES_MAX
from rockoon_runtime.wire import CALLS_MAX

WAITING_PULLS_MAX = BrokerSettings().waiting_pulls_max
GROUP_WATCHERS_MAX = OffsetSettings().watchers_max
HEARTBEAT_SECONDS = OffsetSettings().heartbeat_seconds
# Default of etcd's --quota-backend-bytes; above it, etcd refuses writes.
ETCD_BYTES_MAX = 2 << 30
# Limits chosen for this model; they are not limits of Rockoon.
PROCESS_BYTES_MAX = 8 << 30
START_SECONDS_MAX = 60.0
POINT_SECONDS_MAX = 60.0
# Defaults of the SDK.
COMMIT_SECONDS = 5.0
PULL_WAIT_SECONDS = PullLimits().wait_ms / 1000


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured costs. Unit: CPU seconds of the service, or bytes of resident memory, unless the
    name says disk."""

    append_message: float
    append_byte: float
    append_batch: float
    pull_message: float
    pull_empty: float
    broker_bytes: float
    """Resident memory of an empty broker."""
    queue_bytes: float
    queue_disk_bytes: float
    queue_start_seconds: float
    """Wall-clock seconds of a start after a kill, per queue."""
    queue_point_seconds: float
    """Wall-clock seconds to sync a changed queue for a recovery point."""
    waiting_pull_bytes: float
    broker_topic_bytes: float
    heartbeat: float
    heartbeat_member: float
    """CPU seconds of a heartbeat per member that the reply lists."""
    commit_call: float
    commit_entry: float
    offset_bytes: float
    group_bytes: float
    """Memory of the offset service per group with one member, its stream, and progress of eight
    queues."""
    group_start_seconds: float
    nameserver_bytes: float
    nameserver_topic_bytes: float
    nameserver_group_bytes: float
    watcher_bytes: float
    watcher_second: float
    watcher_change: float
    snapshot_topic_bytes: float
    snapshot_group_bytes: float
    etcd_topic_bytes: float
    etcd_group_bytes: float


@dataclass(frozen=True, slots=True)
class Shape:
    """Number of processes of each service."""

    brokers: int
    shards: int
    nameservers: int

    def __str__(self) -> str:
        return f"{self.brokers} / {self.shards} / {self.nameservers}"


@dataclass(frozen=True, slots=True)
class Demand:
    """Load on a cluster. Each group reads its share of the queues, divided among its members."""

    queues: int
    groups: int
    queues_per_topic: int = 8
    readers_per_queue: int = 1
    """Number of groups that read each queue."""
    members_per_group: int = 4
    producers: int = 100
    messages_per_second: float = 100_000.0
    body_bytes: int = 100
    batch_messages: float = 100.0
    """Messages per batch: many if messages have no ordering key, because a batch then goes to one
    queue; few if keys distribute them over many queues."""
    route_changes_per_second: float = 0.1
    written_share: float = 0.1
    """Share of the queues that change between two recovery points."""

    @property
    def topics(self) -> float:
        return self.queues / self.queues_per_topic

    @property
    def members(self) -> int:
        return self.groups * self.members_per_group

    @property
    def reads(self) -> int:
        """Number of pairs of a queue and a group that reads it."""
        return self.queues * self.readers_per_queue


@dataclass(frozen=True, slots=True)
class Load:
    """Load of one resource of one process of a service."""

    service: str
    resource: str
    needed: float
    limit: float
    unit: str
    how: str

    @property
    def share(self) -> float:
        """Used share of the limit; above 1 the cluster cannot carry the load."""
        return self.needed / self.limit


CORE, MEMORY = (1.0, "cores"), (PROCESS_BYTES_MAX, "bytes")
START = (START_SECONDS_MAX, "seconds")


def of_service(service: str, *rows: tuple[str, float, tuple[float, str], str]) -> list[Load]:
    """Return loads of a service: resource, needed, limit with its unit, and explanation of each."""
    return [Load(service, name, needed, *limit, how) for name, needed, limit, how in rows]


def loads(costs: Costs, shape: Shape, demand: Demand) -> list[Load]:
    """Return the loads of all resources; the one that saturates first is first."""
    found = [
        *broker_loads(costs, shape, demand),
        *offset_loads(costs, shape, demand),
        *nameserver_loads(costs, shape, demand),
    ]
    return sorted(found, key=lambda load: -load.share)


def broker_loads(costs: Costs, shape: Shape, demand: Demand) -> list[Load]:
    brokers = shape.brokers
    rate = demand.messages_per_second / brokers
    batches = rate / demand.batch_messages
    queues, waiting = demand.queues / brokers, demand.reads / brokers
    # Pulls above the broker's limit are answered immediately, and repeated after the longest pause.
    held, answered = min(waiting, WAITING_PULLS_MAX), max(waiting - WAITING_PULLS_MAX, 0.0)
    empty_pulls = held / PULL_WAIT_SECONDS + answered / EMPTY_PAUSE_SECONDS_MAX
    cpu = (
        rate * (costs.append_message + demand.body_bytes * costs.append_byte)
        + batches * costs.append_batch
        + rate * demand.readers_per_queue * costs.pull_message
        + (batches * demand.readers_per_queue + empty_pulls) * costs.pull_empty
    )
    memory = (
        costs.broker_bytes
        + queues * costs.queue_bytes
        + held * costs.waiting_pull_bytes
        + demand.topics * costs.broker_topic_bytes
    )
    written = queues * demand.written_share
    queue_us, point_us = costs.queue_start_seconds * 1e6, costs.queue_point_seconds * 1e6
    pulled = f"{rate:,.0f} messages/s in {batches:,.0f} batches/s, read "
    pulled += f"{demand.readers_per_queue} times; {empty_pulls:,.0f} empty pulls/s"
    read = f"{demand.reads:,} queues read ÷ {brokers}"
    started = f"{queues:,.0f} queues times {queue_us:,.0f} µs"
    synced = f"{written:,.0f} queues written to times {point_us:,.0f} µs"
    return of_service(
        "broker",
        ("CPU", cpu, CORE, pulled),
        ("waiting pulls", waiting, (WAITING_PULLS_MAX, "pulls"), read),
        ("memory", memory, MEMORY, f"{queues:,.0f} queues"),
        ("start after a kill", queues * costs.queue_start_seconds, START, started),
        (
            "recovery point",
            written * costs.queue_point_seconds,
            (POINT_SECONDS_MAX, "seconds"),
            synced,
        ),
    )


def offset_loads(costs: Costs, shape: Shape, demand: Demand) -> list[Load]:
    shards = shape.shards
    members, groups = demand.members / shards, demand.groups / shards
    beats = members / HEARTBEAT_SECONDS
    commits = members / COMMIT_SECONDS
    # Progress changes only in queues with new messages.
    moved = min(demand.reads / shards, demand.messages_per_second * COMMIT_SECONDS / shards)
    entries = moved / COMMIT_SECONDS
    cpu = (
        beats * (costs.heartbeat + (demand.members_per_group - 1) * costs.heartbeat_member)
        + commits * costs.commit_call
        + entries * costs.commit_entry
    )
    # A measured group has eight queues and one member; the larger number is scaled.
    units = max(groups, members, demand.reads / shards / 8)
    committed = f"{beats:,.0f} heartbeats/s, {commits:,.0f} commits/s of {entries:,.0f} queues/s"
    started = f"{units:,.0f} times {costs.group_start_seconds * 1e6:,.0f} µs"
    snapshot = f"{demand.topics:,.0f} topics, {demand.groups:,} groups in one message"
    streams = (min(GROUP_WATCHERS_MAX, CALLS_MAX), "streams")
    kept = costs.offset_bytes + units * costs.group_bytes
    return of_service(
        "offset",
        ("CPU", cpu, CORE, committed),
        ("streams", members, streams, f"{demand.members:,} members ÷ {shards}"),
        ("memory", kept, MEMORY, f"{units:,.0f} times (a member and eight queues)"),
        ("start after a kill", units * costs.group_start_seconds, START, started),
        ("route snapshot", snapshot_bytes(costs, demand), (MESSAGE_BYTES_MAX, "bytes"), snapshot),
    )


def nameserver_loads(costs: Costs, shape: Shape, demand: Demand) -> list[Load]:
    clients = demand.members + demand.producers
    watchers = clients / shape.nameservers + shape.brokers + shape.shards
    changes = demand.route_changes_per_second
    cpu = watchers * (costs.watcher_second + changes * costs.watcher_change)
    memory = (
        costs.nameserver_bytes
        + watchers * costs.watcher_bytes
        + demand.topics * costs.nameserver_topic_bytes
        + demand.groups * costs.nameserver_group_bytes
    )
    kept = demand.topics * costs.etcd_topic_bytes + demand.groups * costs.etcd_group_bytes
    woken = f"{watchers:,.0f} watchers, {changes:g} changes/s that wake each"
    opened = f"{clients:,} clients ÷ {shape.nameservers}, and every node"
    routes = f"{demand.topics:,.0f} topics, {demand.groups:,} groups"
    return [
        *of_service(
            "nameserver",
            ("CPU", cpu, CORE, woken),
            ("streams", watchers, (CALLS_MAX, "streams"), opened),
            ("memory", memory, MEMORY, f"{watchers:,.0f} watchers, {routes}"),
        ),
        *of_service("etcd", ("database", kept, (ETCD_BYTES_MAX, "bytes"), routes)),
    ]


def snapshot_bytes(costs: Costs, demand: Demand) -> float:
    """Return the size of the snapshot of all routes that starting services receive."""
    topics = demand.topics * costs.snapshot_topic_bytes
    return topics + demand.groups * costs.snapshot_group_bytes


@dataclass(frozen=True, slots=True)
class Foretold:
    """One figure at the last point of an axis: predicted from the other points, and measured."""

    measure: str
    figure: str
    at: float
    fitted_up_to: float
    predicted: float
    measured: float

    @property
    def factor(self) -> float:
        """Ratio of the last point's axis value to that of the last fitted point."""
        return self.at / self.fitted_up_to

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def foretold(points: Sequence[Point], figure: str) -> Foretold | None:
    """Predict a figure at the last point by a straight line through all other points; None if there
    are too few points."""
    if len(points) < 3:
        return None
    *near, last = points
    pairs = [(point.at, point.figures[figure]) for point in near]
    line = slope(pairs)
    mean_at = sum(at for at, _ in pairs) / len(pairs)
    mean = sum(value for _, value in pairs) / len(pairs)
    predicted = mean + line * (last.at - mean_at)
    return Foretold(last.measure, figure, last.at, near[-1].at, predicted, last.figures[figure])


def slope_of(points: Sequence[Point], figure: str) -> float:
    """Return the cost of one more unit of the axis; at least 0, because noise can make it
    negative."""
    return max(slope([(point.at, point.figures[figure]) for point in points]), 0.0)


def best(points: Sequence[Point]) -> Point:
    """Return the point with the highest rate, at which the service is idle least."""
    return max(points, key=lambda point: point.rate)


def costs_from(parts: Mapping[str, Part]) -> Costs:
    """Compute the costs from the measured parts. Raises KeyError, IndexError, ValueError: a part is
    missing or incomplete."""
    broker, offset = "broker-a", "offset"
    queues = parts["queues"].of("append to any queue, by queues")
    topics = parts["topics"].of("make a topic, by topics")
    readers = parts["readers"]
    groups = parts["groups"]
    group_points = groups.of("commit 1 queue, by groups")
    watchers = parts["watchers"].of("a change of one route, by watchers")
    sizes = parts["sizes"].of("append, by body bytes")
    beats = parts["heartbeats"].of("heartbeat, by members of the group")
    message = best(parts["producers"].of("append, by producers")).cpu_per_operation(broker)
    by_byte = max(slope([(p.at, p.cpu_per_operation(broker)) for p in sizes]), 0.0)
    commit_one = best(group_points).cpu_per_operation(offset)
    commit_eight = best(groups.of("commit 8 queues, by groups")).cpu_per_operation(offset)
    entry = max((commit_eight - commit_one) / 7, 0.0)
    beat = best(groups.of("heartbeat, by groups")).cpu_per_operation(offset)
    restart = groups.of("offset service restarts, by groups")[-1]
    waiting = readers.of("pull of nothing, by pulls that wait")
    far = watchers[-1]
    return Costs(
        append_message=max(message - 100 * by_byte, 0.0),
        append_byte=by_byte,
        append_batch=best(queues).cpu_per_operation(broker),
        pull_message=best(readers.of("pull, by readers")).cpu_per_operation(broker),
        pull_empty=best(waiting).cpu_per_operation(broker),
        broker_bytes=float(queues[0].figures["broker_empty_bytes"]),
        queue_bytes=slope_of(queues, "broker_bytes"),
        queue_disk_bytes=slope_of(queues, "consume_queue_disk_bytes"),
        queue_start_seconds=slope_of(queues, "restart_seconds"),
        queue_point_seconds=slope_of(queues, "point_seconds_all_touched"),
        waiting_pull_bytes=max(waiting[-1].figures["broker_bytes_per_waiting_pull"], 0.0),
        broker_topic_bytes=slope_of(topics, "broker_bytes"),
        heartbeat=beat,
        heartbeat_member=max(slope([(p.at, p.cpu_per_operation(offset)) for p in beats]), 0.0),
        commit_call=max(commit_one - entry, 0.0),
        commit_entry=entry,
        offset_bytes=float(group_points[0].figures["offset_empty_bytes"]),
        group_bytes=slope_of(group_points, "offset_bytes"),
        group_start_seconds=restart.figures["restart_seconds"] / restart.at,
        nameserver_bytes=float(group_points[0].figures["nameserver_empty_bytes"]),
        nameserver_topic_bytes=slope_of(topics, "nameserver_bytes"),
        nameserver_group_bytes=slope_of(group_points, "nameserver_bytes"),
        watcher_bytes=max(far.figures["nameserver_bytes_per_watcher"], 0.0),
        watcher_second=far.figures["idle_nameserver_cpu_us_per_watcher_second"] * 1e-6,
        watcher_change=far.figures["nameserver_cpu_us_per_watcher_and_change"] * 1e-6,
        snapshot_topic_bytes=slope_of(topics, "snapshot_bytes"),
        snapshot_group_bytes=slope_of(group_points, "snapshot_bytes"),
        etcd_topic_bytes=slope_of(topics, "etcd_bytes"),
        etcd_group_bytes=slope_of(group_points, "etcd_bytes"),
    )
