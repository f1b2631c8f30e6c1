"""Invalid calls: arbitrary requests to every call, and every call by callers without permission."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from faults.calls import Answer, Maker, Method, call, methods, requests_of
from faults.cluster import BROKER, OFFSET, FaultyCluster
from faults.scenario import Outcome, Task
from faults.workload import when_there
from google.protobuf.message import Message
from grpc import aio

import rockoon
from rockoon.admin.access_keys import Permission
from rockoon.errors import NotAuthenticated, RockoonError
from rockoon.net.access import AccessKey
from rockoon.net.tls import dialer
from rockoon_format.batch import encode_batch
from rockoon_format.record import encode_host

CALLS = 60
CANARY = "canary"
CANARY_SECONDS_MAX = 30.0
WRONG = ("INTERNAL", "UNKNOWN")
ENDED = "Internal error from Core"


async def fuzz(task: Task) -> Outcome:
    """Arbitrary requests to every call get a row of the error table; other clients notice
    nothing."""
    outcome, chance = Outcome(), task.chance("fuzz")
    local = FaultyCluster(task)
    statuses: Counter[str] = Counter()
    # One of each kind, for each call.
    wrong: dict[tuple[str, str], tuple[Answer, list[bytes]]] = {}
    async with local, rockoon.connect(local.nameservers) as cluster:
        for name in ("fuzz", CANARY):
            await cluster.admin.create_topic(name, queues_per_broker=2)
            await cluster.admin.create_group(name)
        frames, lengths = encode_batch(
            b"fuzz", 0, [b"one", b"two"], [b""] * 2, 1, encode_host("127.0.0.1", 1)
        )
        known: Mapping[str, tuple[Any, ...]] = {
            "topic": ("fuzz", "fuzz", "none", "%RETRY%fuzz", "SCHEDULE_TOPIC_XXXX"),
            "group": ("fuzz", "fuzz", "none"),
            "producer_group": ("fuzz", "none"),
            "name": ("fuzz", "none"),
            "broker": (BROKER, "none"),
            "member_id": ("one", "two", ""),
            "queue_id": (0, 1, 2, -1),
            "offset": (0, 1, -1, 1 << 62),
            "frames": (frames, frames[:-1], bytes([*frames[:40], 255, *frames[41:]])),
            "record_lengths": (lengths.astype("<u4").tobytes(), b"\xff" * 8, b"\0" * 4),
            "wait_ms": (0, 0, 1),
            "cluster": ("", "rockoon"),
            # No call waits for routes that never come.
            "route_revision": (0, 0, 1),
            "min_revision": (0, 0, 1),
        }
        maker = Maker(chance, known)
        async with channels_of(local) as channels:
            for method in methods():
                for requests in islice(requests_of(method, maker, chance), task.count(CALLS)):
                    answer = await call(channels[method.node], method, requests)
                    outcome.injected += 1
                    statuses[answer.status] += 1
                    # gRPC's own error on this side for a stream that the other side has ended.
                    if answer.status in WRONG and answer.details != ENDED:
                        wrong.setdefault((method.name, answer.details[:60]), (answer, requests))
                    if answer.status == "DEADLINE_EXCEEDED" and not (
                        method.descriptor.server_streaming
                    ):
                        outcome.breaks(method.name, [f"no answer: {requests[0][:60].hex()}"])
                for (name, _), (answer, requests) in wrong.items():
                    said = f"{answer.status} {answer.details}: {requests[0][:60].hex()}"
                    outcome.breaks(name, [said])
                wrong.clear()
                outcome.runs += 1
                outcome.breaks(f"after {method.name}", await canary(cluster, outcome))
                ended = local.unexpected_ends()
                outcome.breaks(f"after {method.name}", ended)
                if ended:
                    break
        for node in local.nodes:
            text = node.log_path.read_text(errors="replace")
            if "Traceback" in text:
                at = text.index("Traceback")
                outcome.breaks(node.name, [" ".join(text[at : at + 1500].split())[-400:]])
        outcome.notes.append(", ".join(f"{name} {n}" for name, n in sorted(statuses.items())))
    return outcome


@asynccontextmanager
async def channels_of(
    local: FaultyCluster, key: AccessKey | None = None
) -> AsyncIterator[dict[str, aio.Channel]]:
    """Return a channel to each node that serves calls."""
    dial = dialer(access=key)
    made = {
        name: dial.channel(local.node(name).address) for name in ("nameserver-a", BROKER, OFFSET)
    }
    try:
        yield made
    finally:
        for channel in made.values():
            await channel.close()


async def canary(cluster: rockoon.Cluster, outcome: Outcome) -> list[str]:
    """Return whether another client's message arrives, and its progress is stored."""
    try:
        async with asyncio.timeout(CANARY_SECONDS_MAX):
            async with cluster.producer() as producer:
                result = await producer.send(CANARY, b"alive")
            outcome.acknowledged += 1
            found = await when_there(lambda: cluster.admin.messages.get(result.offset_message_id))
            await when_there(lambda: cluster.admin.lag(CANARY))
    except (TimeoutError, RockoonError) as error:
        return [f"others do not get on: {type(error).__name__} {error}"]
    return [] if [each.body for each in found.messages] == [b"alive"] else ["a message is gone"]


# Permissions by docs/operate/security.md, independent of the services' own tables. The requests are
# about the topic and the group MINE.
MINE = "mine"
ROLES: Mapping[str, tuple[str, ...] | None] = {
    "unsigned": None,
    "stranger": ("topic:other=read,write,admin", "group:other=read,write,admin"),
    "reader": (f"topic:{MINE}=read", f"group:{MINE}=read"),
    "writer": (f"topic:{MINE}=write", f"group:{MINE}=write"),
    "owner": (f"topic:{MINE}=admin", f"group:{MINE}=admin"),
    "cluster reader": ("cluster=read",),
    "cluster admin": ("cluster=admin",),
}
KEYED = frozenset(ROLES) - {"unsigned"}
NOBODY: frozenset[str] = frozenset()
READER, WRITER, OWNER = (frozenset([role]) for role in ("reader", "writer", "owner"))
CLUSTER_READER, CLUSTER_ADMIN = frozenset(["cluster reader"]), frozenset(["cluster admin"])
SEES = READER | WRITER | OWNER
MAY: Mapping[str, frozenset[str]] = {
    f"{service}.{name}": frozenset(roles)
    for service, calls in {
        "Broker": {
            **dict.fromkeys(("Append", "AppendStream"), WRITER),
            **dict.fromkeys(("Pull", "PullStream", "Read"), READER),
            **dict.fromkeys(("SendBack", "QueryMessages", "ReadLog"), READER),
            **dict.fromkeys(("QueueStatus", "SearchOffset", "ListAppendStreams"), SEES),
            **dict.fromkeys(("EndTransaction", "CheckTransactions"), WRITER),
            **dict.fromkeys(("ListTransactions", "ListDelayed"), CLUSTER_READER),
            **dict.fromkeys(("DescribeBroker", "DescribeDrain"), CLUSTER_READER),
            # Its owner is known only after it is found.
            "CancelDelayed": KEYED,
            **dict.fromkeys(("DescribeCompaction", "ReadGeneration"), CLUSTER_ADMIN),
            **dict.fromkeys(("PutGenerationFile", "PublishGeneration"), CLUSTER_ADMIN),
            "DiscardGeneration": CLUSTER_ADMIN,
        },
        "OffsetService": {
            **dict.fromkeys(("Heartbeat", "Leave", "WatchGroup", "Resolve", "Commit"), READER),
            **dict.fromkeys(("Query", "ListProgress", "Lag", "ListMembers"), SEES),
            **dict.fromkeys(("ListLocks", "Export"), SEES),
            **dict.fromkeys(("PlanReset", "Reset"), WRITER),
            **dict.fromkeys(("ApplyReset", "UndoReset"), KEYED),
            **dict.fromkeys(("Import", "ReadState"), CLUSTER_ADMIN),
            "Unread": NOBODY,
        },
        "InFlightService": {
            **dict.fromkeys(("Acquire", "Acknowledge", "ChangeVisibility"), READER),
            **dict.fromkeys(("ListInFlight", "ListClients", "ListProducers"), SEES),
            "ReportClients": READER,
        },
        "Logs": {
            **dict.fromkeys(("WatchLogs", "SuspectLeader", "ReportLog", "ConfirmEpoch"), NOBODY),
            **dict.fromkeys(("ChangeInSync", "HandOver", "Resign", "GoOnAlone"), NOBODY),
            "RecordCommittedEnd": NOBODY,
            **dict.fromkeys(("ListLogs", "DescribeLog"), CLUSTER_READER),
            **dict.fromkeys(("MoveReplica", "RemoveReplica", "SetCopies"), CLUSTER_ADMIN),
            **dict.fromkeys(("ElectLog", "AdoptLog"), CLUSTER_ADMIN),
        },
        "NameServer": {
            **dict.fromkeys(("RegisterNode", "UnregisterNode"), NOBODY),
            **dict.fromkeys(("GetRoute", "GetGroup"), SEES),
            **dict.fromkeys(("WatchRoutes", "ListTopics", "ListGroups"), KEYED),
            **dict.fromkeys(("CreateTopic", "CreateTopics", "UpdateTopic", "DeleteTopic"), OWNER),
            **dict.fromkeys(("CreateGroup", "UpdateGroup", "DeleteGroup"), OWNER),
            **dict.fromkeys(("Subscribe", "ProvideGroupTopic"), READER),
            "DescribeCluster": CLUSTER_READER,
            **dict.fromkeys(("ReadRoutes", "RemoveBroker", "FinishUpgrade"), CLUSTER_ADMIN),
        },
        "Settings": dict.fromkeys(("DescribeSettings", "ChangeSetting"), CLUSTER_ADMIN),
        "LiveSettings": {
            **dict.fromkeys(("StoreSetting", "WatchSettings"), NOBODY),
            "ListGateways": CLUSTER_ADMIN,
        },
        "AccessKeys": {
            **dict.fromkeys(("CreateKey", "ListKeys", "UpdateKey"), CLUSTER_ADMIN),
            **dict.fromkeys(("RotateKey", "DeleteKey"), CLUSTER_ADMIN),
            "WatchKeys": NOBODY,
        },
    }.items()
    for name, roles in calls.items()
}
NAMES = frozenset(("topic", "group", "producer_group", "name"))
PARTS = frozenset(
    (
        *("queues", "messages", "subscriptions", "entries", "topics", "subscribe", "wanted"),
        *("changes", "clients"),
    )
)
REFUSED = ("UNAUTHENTICATED", "PERMISSION_DENIED")
REFUSED_CODES = ("NOT_AUTHENTICATED", "NOT_PERMITTED")


def about_mine(method: Method) -> Message:
    """Return a request about MINE that is invalid otherwise: a permitted caller changes nothing."""
    return _named(method.request())


def _named(message: Message) -> Message:
    for field in message.DESCRIPTOR.fields:
        if field.name == "topics" and field.type == field.TYPE_STRING:
            getattr(message, field.name).append(MINE)
        elif field.name in NAMES and field.type == field.TYPE_STRING and not field.is_repeated:
            setattr(message, field.name, MINE)
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            part = getattr(message, field.name)
            if field.name in PARTS:
                _named(part.add() if field.is_repeated else part)
            elif field.name in ("queue", "config", "range", "pull", "delivered", "name"):
                _named(part)
    return message


async def roles(task: Task) -> Outcome:
    """Every caller makes every call: permitted calls pass, and no others."""
    outcome = Outcome()
    local = FaultyCluster(task, access=True)
    async with local, rockoon.connect(local.nameservers, access=local.access) as root:
        await root.admin.create_topic("other")
        keys: dict[str, AccessKey | None] = {}
        for role, permissions in ROLES.items():
            keys[role] = None
            if permissions is not None:
                name, allowed = role.replace(" ", "-"), map(Permission.parse, permissions)
                keys[role] = await root.admin.access_keys.create(name, allowed)
        for made in filter(None, keys.values()):
            await in_force(local, made)
        for role, key in keys.items():
            async with channels_of(local, key) as channels:
                for method in methods():
                    raw = about_mine(method).SerializeToString()
                    answer = await call(channels[method.node], method, [raw])
                    outcome.injected += 1
                    outcome.acknowledged += not is_refused(answer)
                    may = role in MAY[method.name]
                    if may == is_refused(answer):
                        did = "is refused" if may else "goes through"
                        said = f"{role} {did} ({answer.status} {answer.code} {answer.details})"
                        outcome.breaks(method.name, [said])
            outcome.runs += 1
        outcome.breaks("at the end", local.unexpected_ends())
    return outcome


def is_refused(answer: Answer) -> bool:
    return answer.status in REFUSED or answer.code in REFUSED_CODES


async def in_force(local: FaultyCluster, key: AccessKey) -> None:
    """Wait until broker and offset service know a key."""
    async with (
        asyncio.timeout(CANARY_SECONDS_MAX),
        rockoon.connect(local.nameservers, access=key) as connection,
    ):
        for ask in (
            lambda: connection.admin.describe_broker(BROKER),
            lambda: connection.admin.members("nobody"),
        ):
            while True:
                try:
                    await ask()
                except NotAuthenticated:
                    await asyncio.sleep(CANARY_SECONDS_MAX / 1000)
                    continue
                except RockoonError:
                    pass
                break


IDLE = 1000


async def connections(task: Task) -> Outcome:
    """Open thousands of silent connections: others are served, and no resource stays in use."""
    outcome = Outcome()
    local = FaultyCluster(task)
    async with local, rockoon.connect(local.nameservers) as cluster:
        await cluster.admin.create_topic(CANARY, queues_per_broker=1)
        await cluster.admin.create_group(CANARY)
        outcome.breaks("before", await canary(cluster, outcome))
        for name in ("nameserver-a", BROKER, OFFSET):
            port, before = local.node(name).port, descriptors(local, name)
            writers = []
            try:
                for _ in range(task.count(IDLE)):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writers.append(writer)
                outcome.injected += len(writers)
                outcome.breaks(f"{name} has them", await canary(cluster, outcome))
            finally:
                for writer in writers:
                    writer.transport.abort()
            outcome.runs += 1
            try:
                async with asyncio.timeout(CANARY_SECONDS_MAX):
                    while descriptors(local, name) > before + 10:
                        await asyncio.sleep(CANARY_SECONDS_MAX / 300)
            except TimeoutError:
                outcome.breaks(name, [f"{descriptors(local, name) - before} descriptors stay open"])
        outcome.breaks("at the end", local.unexpected_ends())
    return outcome


def descriptors(local: FaultyCluster, name: str) -> int:
    return len(list(Path(f"/proc/{local.node(name).pid}/fd").iterdir()))
