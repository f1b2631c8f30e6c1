"""A cluster in this process and this memory, for tests of clients: nameserver, brokers, offset
service, each on a port of its own and each able to go away and come back.

They answer as the protocol says, decide nothing that a test could not see, and keep a record of
what they were asked. Where the real services refine an answer, tests belong on the real ones.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

from google.protobuf.message import Message as ProtoMessage
from grpc import aio

from rockoon_core import errors
from rockoon_core.changes import Changes
from rockoon_format import sql92
from rockoon_format.hashes import tags_code
from rockoon_format.message_id import encode_offset_id
from rockoon_format.names import dlq_topic, retry_topic
from rockoon_format.properties import decode, encode
from rockoon_format.record import Record, decode_record, encode_host, encode_record
from rockoon_proto.v1 import broker_pb2 as broker_wire
from rockoon_proto.v1 import nameserver_pb2 as route_wire
from rockoon_proto.v1 import offset_pb2 as offset_wire
from rockoon_proto.v1.broker_pb2_grpc import BrokerServicer, add_BrokerServicer_to_server
from rockoon_proto.v1.nameserver_pb2_grpc import (
    NameServerServicer,
    add_NameServerServicer_to_server,
)
from rockoon_proto.v1.offset_pb2_grpc import (
    OffsetServiceServicer,
    add_OffsetServiceServicer_to_server,
)
from rockoon_runtime.wire import GrpcServer
from support.drains import AT_ONCE

HOST = encode_host("127.0.0.1", 10911)
Place = tuple[str, str, int]
"""Topic, broker, queue id."""


class Listener:
    """A servicer on a port; the port stays the same when it comes back."""

    def __init__(self, add: Any, servicer: Any) -> None:
        self._add, self._servicer = add, servicer
        self._server: GrpcServer | None = None
        self.address = "127.0.0.1:0"

    async def start(self) -> None:
        def register(server: aio.Server) -> None:
            self._add(self._servicer, server)

        self._server = GrpcServer("fake", "rockoon", self.address, register, [], drain=AT_ONCE)
        await self._server.__aenter__()
        self.address = self._server.address

    async def stop(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            await server.__aexit__(None, None, None)


class FakeNameserver(NameServerServicer):
    """Routes in memory; each change is told to watchers as a whole snapshot."""

    def __init__(self, cluster: "FakeCluster") -> None:
        self.listener = Listener(add_NameServerServicer_to_server, self)
        self.cluster = cluster
        self.revision = 1
        self.changes = Changes()
        self.nodes: dict[str, route_wire.Node] = {}
        self.topics: dict[str, route_wire.Topic] = {}
        self.groups: dict[str, int] = {}
        self.group_configs: dict[str, route_wire.GroupConfig] = {}
        """Of groups that are not as they were made."""
        self.subscriptions: dict[tuple[str, str], int] = {}

    def changed(self) -> int:
        self.revision += 1
        self.changes.note()
        return self.revision

    def put_node(self, kind: route_wire.NodeKind, name: str, address: str) -> None:
        self.nodes[name] = route_wire.Node(kind=kind, name=name, address=address)
        self.changed()

    def remove_node(self, name: str) -> None:
        if self.nodes.pop(name, None):
            self.changed()

    def create_revisions(self, topic: str) -> dict[Place, int]:
        blocks = self.topics[topic].blocks if topic in self.topics else ()
        return {
            (topic, block.broker, block.first_queue_id + number): block.create_revision
            for block in blocks
            for number in range(block.queues)
        }

    def _update(self, topics: Sequence[str]) -> route_wire.RouteUpdate:
        return route_wire.RouteUpdate(
            revision=self.revision,
            snapshot=True,
            nodes=list(self.nodes.values()),
            topics=[t for name, t in self.topics.items() if not topics or name in topics],
            etcd_reachable=True,
            cluster="rockoon",
        )

    async def GetRoute(self, request: Any, _: Any) -> route_wire.RouteUpdate:
        return self._update(request.topics)

    async def WatchRoutes(self, request: Any, _: Any) -> AsyncIterator[route_wire.RouteUpdate]:
        while True:
            seen = self.changes.count
            yield self._update(request.topics)
            await self.changes.wait(seen)

    async def GetGroup(self, request: Any, _: Any) -> route_wire.GetGroupReply:
        name = request.group
        if name not in self.groups:
            raise errors.GroupNotFound(group=name)
        config = self.group_configs.get(name, route_wire.GroupConfig(name=name))
        return route_wire.GetGroupReply(
            group=route_wire.Group(config=config, incarnation=self.groups[name]),
            subscriptions=[
                route_wire.Subscription(group=group, topic=topic, revision=revision)
                for (group, topic), revision in sorted(self.subscriptions.items())
                if group == name
            ],
            revision=self.revision,
            etcd_reachable=True,
        )

    async def ProvideGroupTopic(self, request: Any, _: Any) -> route_wire.TopicReply:
        if request.group not in self.groups:
            raise errors.GroupNotFound(group=request.group)
        is_retry = request.topic == route_wire.GROUP_RETRY
        topic = (retry_topic if is_retry else dlq_topic)(request.group)
        created = topic not in self.topics
        if created:
            self.cluster.create_topic(topic)
        return route_wire.TopicReply(
            topic=self.topics[topic], revision=self.revision, created=created
        )

    async def Subscribe(self, request: Any, _: Any) -> route_wire.SubscribeReply:
        if request.topic not in self.topics:
            raise errors.TopicNotFound(topic=request.topic)
        if request.group not in self.groups:
            if not request.create_group:
                raise errors.GroupNotFound(group=request.group)
            self.groups[request.group] = self.changed()
        key = (request.group, request.topic)
        created = key not in self.subscriptions
        if created:
            self.subscriptions[key] = self.changed()
        return route_wire.SubscribeReply(revision=self.revision, created=created)


@dataclass
class FakeQueue:
    min_offset: int = 0
    frames: list[bytes] = field(default_factory=list)
    """From `min_offset` on."""
    codes: list[int] = field(default_factory=list)

    @property
    def max_offset(self) -> int:
        return self.min_offset + len(self.frames)

    def append(self, topic: str, queue_id: int, body: bytes, tags: str) -> int:
        offset = self.max_offset
        record = Record(
            topic=topic.encode(),
            queue_id=queue_id,
            queue_offset=offset,
            physical_offset=1000 * offset,
            body=body,
            properties=encode({"TAGS": tags} if tags else {}),
            born_timestamp_ms=1,
            born_host=HOST,
            store_timestamp_ms=1000 + offset,
            store_host=HOST,
        )
        self.frames.append(encode_record(record))
        self.codes.append(tags_code(tags) if tags else 0)
        return offset

    def take_back(self, original: Record, topic: str, properties: dict[str, str]) -> None:
        record = replace(
            original,
            topic=topic.encode(),
            queue_id=0,
            queue_offset=self.max_offset,
            physical_offset=1000 * self.max_offset,
            properties=encode(properties),
            reconsume_times=original.reconsume_times + 1,
        )
        self.frames.append(encode_record(record))
        self.codes.append(tags_code(properties.get("TAGS", "")))

    def expire(self, offset: int) -> None:
        """Retention deletes what lies below an offset."""
        gone = offset - self.min_offset
        del self.frames[:gone], self.codes[:gone]
        self.min_offset = offset


class FakeBroker(BrokerServicer):
    """Queues in memory, with long polling; store time of message n is 1000 + n."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.listener = Listener(add_BrokerServicer_to_server, self)
        self.queues: dict[tuple[str, int], FakeQueue] = {}
        self.appended = Changes()
        self.pulls: list[tuple[str, int, int]] = []
        self.damaged: set[tuple[str, int, int]] = set()
        """Topic, queue id, offset of messages that the disk does not give."""
        self.damaged_tags: set[tuple[str, int, int]] = set()
        """Of messages whose tags are not what they were: who filters by tags is told so."""
        self.sent_back: list[tuple[broker_wire.SendBackRequest, broker_wire.SendBackReply]] = []
        self.refuse_send_backs: errors.RockoonError | None = None
        """Raised by SendBack while it is set."""
        self.knows_originals = True
        """False: retention has deleted them all."""
        self.refused_bodies: set[bytes] = set()
        """What SendBack takes for too large."""

    def _find(self, topic: str, queue_id: int) -> FakeQueue:
        found = self.queues.get((topic, queue_id))
        if found is None:
            raise errors.QueueNotFound(topic=topic, queue=queue_id, broker=self.name)
        return found

    async def Pull(self, request: Any, _: Any) -> broker_wire.PullReply:
        queue = self._find(request.topic, request.queue_id)
        self.pulls.append((request.topic, request.queue_id, request.offset))
        try:
            async with asyncio.timeout(request.wait_ms / 1000):
                while request.offset == queue.max_offset:
                    await self.appended.wait(self.appended.count)
        except TimeoutError:
            pass
        reply = broker_wire.PullReply(min_offset=queue.min_offset, max_offset=queue.max_offset)
        if queue.max_offset == 0:
            reply.status = broker_wire.NO_MESSAGE_IN_QUEUE
        elif request.offset < queue.min_offset:
            reply.status, reply.next_offset = broker_wire.OFFSET_TOO_SMALL, queue.min_offset
        elif request.offset == queue.max_offset:
            reply.status, reply.next_offset = broker_wire.OFFSET_OVERFLOW_ONE, request.offset
        elif request.offset > queue.max_offset:
            reply.status, reply.next_offset = broker_wire.OFFSET_OVERFLOW_BADLY, queue.max_offset
        else:
            self._fill(reply, queue, request)
        return reply

    def _fill(self, reply: broker_wire.PullReply, queue: FakeQueue, request: Any) -> None:
        start = request.offset - queue.min_offset
        stop = min(start + (request.max_messages or 1024), len(queue.frames))
        wanted = set(request.tag_hashes)
        selects = sql92.compile(request.sql_expression or "TRUE").matches_encoded
        found: list[bytes] = []
        for index in range(start, stop):
            if wanted and queue.codes[index] not in wanted:
                continue
            place = (request.topic, request.queue_id, queue.min_offset + index)
            if place in self.damaged or (wanted and place in self.damaged_tags):
                if not found:
                    raise errors.StoreCorrupt(path="commitlog/0", reason="no record")
                stop = index
                break
            if selects(decode_record(queue.frames[index], check_crc=False).properties) is True:
                found.append(queue.frames[index])
        reply.status = broker_wire.FOUND if found else broker_wire.NO_MATCHED_MESSAGE
        reply.next_offset = queue.min_offset + stop
        reply.frames = b"".join(found)
        reply.record_lengths = b"".join(len(frame).to_bytes(4, "little") for frame in found)

    async def SendBack(self, request: Any, _: Any) -> broker_wire.SendBackReply:
        """Retries come at once, whatever the delay; dead letters lie in the group's topic."""
        if self.refuse_send_backs is not None:
            raise self.refuse_send_backs
        reply = broker_wire.SendBackReply()
        attempts_max = request.attempts_max if request.HasField("attempts_max") else 16
        for failed in request.messages:
            result = reply.results.add()
            if not failed.record and not self.knows_originals:
                missing = errors.MessageNotFound(position=failed.queue_offset)
                result.error.CopyFrom(missing.to_wire())
                continue
            frame = failed.record
            if not frame:
                held = self._find(failed.topic, failed.queue_id)
                frame = held.frames[failed.queue_offset - held.min_offset]
            original = decode_record(frame)
            if original.body in self.refused_bodies:
                result.error.CopyFrom(errors.PropertiesTooLarge(index=0, limit=0).to_wire())
                continue
            result.dead = failed.delay_level < 0 or original.reconsume_times >= attempts_max
            result.topic = (dlq_topic if result.dead else retry_topic)(request.group)
            result.attempts = original.reconsume_times + 1
            kept = decode(original.properties)
            properties = {
                "RETRY_TOPIC": failed.topic,
                "ORIGIN_MESSAGE_ID": encode_offset_id(HOST, failed.physical_offset),
                **kept,
                "ROCKOON_FAILURE": failed.failure,
            }
            result.origin_message_id = properties["ORIGIN_MESSAGE_ID"]
            queue = self.queues.setdefault((result.topic, 0), FakeQueue())
            queue.take_back(original, result.topic, properties)
        self.sent_back.append((request, reply))
        self.appended.note()
        return reply

    async def QueueStatus(self, request: Any, _: Any) -> broker_wire.QueueStatusReply:
        reply = broker_wire.QueueStatusReply(as_of_ms=10_000)
        for wanted in request.queues:
            queue = self._find(wanted.topic, wanted.queue_id)
            reply.queues.add(queue=wanted, min_offset=queue.min_offset, max_offset=queue.max_offset)
        return reply

    async def SearchOffset(self, request: Any, _: Any) -> broker_wire.SearchOffsetReply:
        reply = broker_wire.SearchOffsetReply()
        for wanted in request.queues:
            queue = self._find(wanted.topic, wanted.queue_id)
            offset = min(max(request.timestamp_ms - 1000, queue.min_offset), queue.max_offset)
            reply.offsets.add(queue=wanted, offset=offset)
        return reply


@dataclass
class FakeProgress:
    offset: int
    epoch: int
    owner: str


class FakeOffsetService(OffsetServiceServicer):
    """Members and progress in memory; a member stays until it leaves or `expire` ends it."""

    def __init__(self, cluster: "FakeCluster") -> None:
        self.listener = Listener(add_OffsetServiceServicer_to_server, self)
        self.cluster = cluster
        self.heartbeat_seconds = 0.2
        self.lease_seconds = 30.0
        self.handover_seconds_max = 10.0
        self.waits: dict[tuple[str, Place], dict[str, float]] = {}
        """Since when members wait for queues of others."""
        self.owners_then: dict[str, tuple[int, list[offset_wire.QueueOwner]]] = {}
        """Of the latest version that somebody wanted them for."""
        self.releases: list[tuple[str, Place, frozenset[str]]] = []
        """Group, queue, and who waited for it."""
        self.refuse_starts: errors.RockoonError | None = None
        self.tells_of_pauses = True
        self.changes = Changes()
        self.version = 0
        self.members: dict[str, dict[str, offset_wire.Member]] = {}
        self.instances: dict[tuple[str, str], str] = {}
        self.resets: list[tuple[str, Place]] = []
        self.progress: dict[tuple[str, Place], FakeProgress] = {}
        self.commits: list[tuple[str, Place, int]] = []
        """Accepted: committer, queue, offset."""
        self.refused: list[tuple[str, Place, int]] = []

    def changed(self) -> None:
        self.version += 1
        self.changes.note()

    def expire(self, group: str, member_id: str) -> None:
        """A member has been silent for too long."""
        del self.members[group][member_id]
        self.changed()

    def reset(self, group: str, place: Place, offset: int) -> None:
        """An operator's reset."""
        held = self.progress[group, place]
        self.progress[group, place] = FakeProgress(offset, held.epoch + 1, "")
        self.resets.append((group, place))
        self.changes.note()

    def _check_group(self, group: str) -> None:
        if group not in self.cluster.nameserver.groups:
            raise errors.GroupNotFound(group=group)

    async def Heartbeat(self, request: Any, _: Any) -> offset_wire.HeartbeatReply:
        self._check_group(request.group)
        members = self.members.setdefault(request.group, {})
        key = (request.group, request.member_id)
        if request.member_id in members and self.instances[key] != request.instance:
            raise errors.MemberIdTaken(member=request.member_id, group=request.group)
        if request.member_id not in members:
            members[request.member_id] = offset_wire.Member(
                member_id=request.member_id,
                subscriptions=request.subscriptions,
                mode=request.mode,
                allocation=request.allocation,
            )
            self.instances[key] = request.instance
            self.changed()
        reply = offset_wire.HeartbeatReply(
            membership_version=self.version,
            members=self._members(request.group),
            heartbeat_seconds=self.heartbeat_seconds,
            lease_seconds=self.lease_seconds,
            handover_seconds_max=self.handover_seconds_max,
            owners_known=request.wants_owners,
            consume_disabled=self.tells_of_pauses and self._is_paused(request.group),
        )
        if request.wants_owners and request.owners_version != self.version:
            reply.owners.extend(self._owners(request.group))
        return reply

    def _owners(self, group: str) -> list[offset_wire.QueueOwner]:
        """Owners when the members became these."""
        version, owners = self.owners_then.get(group, (0, []))
        if version != self.version:
            owners = [
                offset_wire.QueueOwner(queue=_ref(place), member_id=held.owner)
                for (name, place), held in sorted(self.progress.items())
                if name == group and held.owner
            ]
            self.owners_then[group] = self.version, owners
        return owners

    async def ListLocks(self, request: Any, _: Any) -> offset_wire.ListLocksReply:
        reply = offset_wire.ListLocksReply()
        for (group, place), held in sorted(self.progress.items()):
            if group == request.group and held.owner:
                reply.locks.add(
                    queue=_ref(place),
                    owner=held.owner,
                    epoch=held.epoch,
                    since_ms=1,
                    lease_left_ms=int(self.lease_seconds * 1000),
                    waiting=sorted(self.waits.get((group, place), ())),
                )
        return reply

    def pause(self, group: str, *, paused: bool = True) -> None:
        config = route_wire.GroupConfig(name=group, consume_disabled=paused)
        self.cluster.nameserver.group_configs[group] = config
        self.changed()

    def _is_paused(self, group: str) -> bool:
        config = self.cluster.nameserver.group_configs.get(group)
        return config is not None and config.consume_disabled

    def _members(self, group: str) -> list[offset_wire.Member]:
        return [member for _, member in sorted(self.members.get(group, {}).items())]

    async def Leave(self, request: Any, _: Any) -> offset_wire.LeaveReply:
        if self.members.get(request.group, {}).pop(request.member_id, None):
            self.changed()
        return offset_wire.LeaveReply()

    async def WatchGroup(self, request: Any, _: Any) -> AsyncIterator[offset_wire.GroupEvent]:
        self._check_group(request.group)
        told, told_releases = len(self.resets), len(self.releases)
        while True:
            seen = self.changes.count
            resets, told = self.resets[told:], len(self.resets)
            releases, told_releases = self.releases[told_releases:], len(self.releases)
            yield offset_wire.GroupEvent(
                membership_version=self.version,
                members=self._members(request.group),
                reset_queues=[_ref(place) for group, place in resets if group == request.group],
                released_queues=[
                    _ref(place)
                    for group, place, waiting in releases
                    if group == request.group
                    and (not request.member_id or request.member_id in waiting)
                ],
                deleted=request.group not in self.cluster.nameserver.groups,
                consume_disabled=self.tells_of_pauses and self._is_paused(request.group),
            )
            await self.changes.wait(seen)

    async def Query(self, request: Any, _: Any) -> offset_wire.QueryReply:
        held = self.progress.get((request.group, _place(request.queue)))
        return offset_wire.QueryReply(
            found=held is not None, offset=held.offset if held else 0, rule=1
        )

    async def Resolve(self, request: Any, _: Any) -> offset_wire.ResolveReply:
        self._check_group(request.group)
        if self._is_paused(request.group):
            raise errors.ConsumeDisabled(group=request.group)
        reply = offset_wire.ResolveReply()
        for ref in request.queues:
            try:
                if self.refuse_starts is not None:
                    raise self.refuse_starts
                reply.starts.append(self._resolve(request, ref))
            except errors.RockoonError as error:
                reply.starts.add(queue=ref, error=error.to_wire())
        return reply

    def _holder(self, group: str, member_id: str, place: Place) -> str:
        """Another live member that may keep a queue for now; "" when the asker may have it."""
        held = self.progress.get((group, place))
        owner = self.members.get(group, {}).get(held.owner) if held else None
        if not member_id or owner is None or owner.member_id == member_id:
            return ""
        if place[0] not in {each.topic for each in owner.subscriptions}:
            return ""
        if owner.mode != offset_wire.CLUSTERING:
            return ""
        now = asyncio.get_running_loop().time()
        since = self.waits.setdefault((group, place), {}).setdefault(member_id, now)
        return owner.member_id if now - since < self.handover_seconds_max else ""

    def _resolve(self, request: Any, ref: offset_wire.QueueRef) -> offset_wire.Start:
        place = _place(ref)
        create_revisions = self.cluster.nameserver.create_revisions(ref.topic)
        if place not in create_revisions:
            raise errors.QueueNotFound(topic=ref.topic, queue=ref.queue_id, broker=ref.broker)
        holder = self._holder(request.group, request.member_id, place)
        if holder:
            raise errors.QueueHeld(queue="/".join(map(str, place)), owner=holder)
        queue = self.cluster.brokers[ref.broker].queues[ref.topic, ref.queue_id]
        low, high = queue.min_offset, queue.max_offset
        held = self.progress.get((request.group, place))
        subscribed = self.cluster.nameserver.subscriptions[request.group, ref.topic]
        gap = 0
        if held is not None and low <= held.offset <= high:
            offset, reason = held.offset, offset_wire.COMMITTED
        elif held is not None:
            reason = offset_wire.BELOW_MIN if held.offset < low else offset_wire.ABOVE_MAX
            offset = low if held.offset < low else high
            gap = max(low - held.offset, 0)
        elif create_revisions[place] > subscribed:
            offset, reason = low, offset_wire.NEW_QUEUE
        elif request.policy.consume_from == route_wire.CONSUME_FROM_FIRST:
            offset, reason = low, offset_wire.FIRST
        else:
            offset, reason = high, offset_wire.LAST
        epoch = held.epoch if held else 1
        if held and request.member_id not in ("", held.owner):
            epoch += 1
            self.waits.pop((request.group, place), None)
        owner = request.member_id or (held.owner if held else "")
        self.progress[request.group, place] = FakeProgress(offset, epoch, owner)
        return offset_wire.Start(
            queue=ref, offset=offset, reason=reason, epoch=epoch, explanation="as told", gap=gap
        )

    async def Commit(self, request: Any, _: Any) -> offset_wire.CommitReply:
        self._check_group(request.group)
        reply = offset_wire.CommitReply(consume_disabled=self._is_paused(request.group))
        for entry in request.entries:
            place = _place(entry.queue)
            held = self.progress.get((request.group, place))
            taken = (request.member_id, place, entry.offset)
            refusal: errors.RockoonError | None = None
            if held is None or held.epoch != entry.epoch:
                current = held.epoch if held else 0
                refusal = errors.Fenced(epoch=entry.epoch, queue=place, current=current)
            elif entry.offset < held.offset and not request.force:
                refusal = errors.CommitBehind(offset=entry.offset, stored=held.offset, queue=place)
            else:
                held.offset = entry.offset
            (self.refused if refusal else self.commits).append(taken)
            reply.results.add(
                queue=entry.queue,
                offset=held.offset if held else 0,
                error=refusal.to_wire() if refusal else None,
            )
        for ref in request.release:
            place = _place(ref)
            held = self.progress.get((request.group, place))
            if held is not None and request.member_id and held.owner == request.member_id:
                held.owner = ""
                waiting = frozenset(self.waits.pop((request.group, place), {}))
                self.releases.append((request.group, place, waiting))
                self.changes.note()
        return reply


class FakeCluster:
    """One nameserver, some brokers, one offset service."""

    def __init__(self, brokers: Sequence[str] = ("broker-a",)) -> None:
        self.nameserver = FakeNameserver(self)
        self.brokers = {name: FakeBroker(name) for name in brokers}
        self.offset = FakeOffsetService(self)
        self._exit = AsyncExitStack()

    @property
    def address(self) -> str:
        return self.nameserver.listener.address

    async def __aenter__(self) -> Self:
        await self._start(self.nameserver.listener)
        for broker in self.brokers.values():
            await self._start(broker.listener)
            self.nameserver.put_node(route_wire.BROKER, broker.name, broker.listener.address)
        await self._start(self.offset.listener)
        self.nameserver.put_node(route_wire.OFFSET_SERVICE, "offset", self.offset.listener.address)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._exit.aclose()

    async def _start(self, listener: Listener) -> None:
        await listener.start()
        self._exit.push_async_callback(listener.stop)

    async def add_broker(self, name: str) -> FakeBroker:
        broker = self.brokers[name] = FakeBroker(name)
        await self._start(broker.listener)
        self.nameserver.put_node(route_wire.BROKER, name, broker.listener.address)
        return broker

    def create_topic(self, topic: str, queues: int = 1, brokers: Sequence[str] = ()) -> None:
        revision = self.nameserver.changed()
        self.nameserver.topics[topic] = route_wire.Topic(
            config=route_wire.TopicConfig(name=topic, permissions=6), incarnation=revision
        )
        for broker in brokers or self.brokers:
            self.add_queues(topic, broker, queues)

    def add_queues(self, topic: str, broker: str, queues: int) -> None:
        route = self.nameserver.topics[topic]
        first = sum(block.queues for block in route.blocks if block.broker == broker)
        for number in range(first, first + queues):
            self.brokers[broker].queues[topic, number] = FakeQueue()
        route.blocks.add(
            broker=broker,
            first_queue_id=first,
            queues=queues,
            create_revision=self.nameserver.changed(),
        )

    def delete_topic(self, topic: str) -> None:
        del self.nameserver.topics[topic]
        for broker in self.brokers.values():
            for key in [key for key in broker.queues if key[0] == topic]:
                del broker.queues[key]
        self.nameserver.changed()

    def delete_group(self, group: str) -> None:
        del self.nameserver.groups[group]
        self.nameserver.changed()
        self.offset.changed()

    def append(
        self,
        topic: str,
        bodies: Sequence[bytes],
        *,
        broker: str = "broker-a",
        queue_id: int = 0,
        tags: Sequence[str] = (),
    ) -> None:
        """Store messages, as a producer would have."""
        chosen = self.brokers[broker]
        queue = chosen.queues[topic, queue_id]
        for index, body in enumerate(bodies):
            queue.append(topic, queue_id, body, tags[index] if tags else "")
        chosen.appended.note()


def _place(ref: offset_wire.QueueRef) -> Place:
    return (ref.topic, ref.broker, ref.queue_id)


def _ref(place: Place) -> ProtoMessage:
    return offset_wire.QueueRef(topic=place[0], broker=place[1], queue_id=place[2])
