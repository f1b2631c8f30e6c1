"""Topics in etcd: create, update, delete; one transaction each, so create revisions are ordered.

Each change of a topic's queues puts its key too: concurrent changes conflict by its modification
revision.
"""

from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import NamedTuple

from rockoon_core.errors import (
    BrokerNotFound,
    Busy,
    EtcdUnavailable,
    InvalidArgument,
    NoWritableQueue,
    RockoonError,
    TopicChanged,
    TopicExists,
    TopicNotFound,
)
from rockoon_core.route_checks import changed_topic, checked_placements, checked_topic
from rockoon_nameserver.etcd_data import (
    TRANSACTION_OPERATIONS_MAX,
    DeleteKey,
    KeyCondition,
    KeyRange,
    KeyValue,
    PutKey,
    absent,
    exists,
    unchanged,
)
from rockoon_nameserver.keyspace import (
    BlockKey,
    DeletionKey,
    Keyspace,
    NodeKey,
    ReplicaKey,
    TopicKey,
    block_value,
    read_block,
    read_node,
    read_topic,
    topic_value,
)
from rockoon_nameserver.request_checks import refuse_impossible_topic
from rockoon_nameserver.route_store import RouteStore
from rockoon_proto.v1.nameserver_pb2 import (
    BROKER,
    CreateTopicRequest,
    CreateTopicsReply,
    DeleteReply,
    DeleteTopicRequest,
    Placement,
    QueueBlock,
    Topic,
    TopicConfig,
    TopicReply,
    UpdateTopicRequest,
)

QUEUES_PER_BROKER_DEFAULT = 4
ATTEMPTS_MAX = 8
TOPICS_AT_ONCE_MAX = 4096


# Returns the deletion records to remove when this number is added.
OldestDeletions = Callable[[int], Sequence[DeletionKey]]


def deletion_records(
    keyspace: Keyspace, oldest_deletions: OldestDeletions, *keys: DeletionKey
) -> list[PutKey | DeleteKey]:
    """Return the operations that record deletions of topics or groups, for the transaction that
    deletes them.

    A reader that was disconnected learns of a deletion by its record. An entity that is missing
    without a record was lost with etcd's data: its progress and messages are kept.
    """
    old = [key for key in oldest_deletions(len(keys)) if key not in keys]
    return [
        *(PutKey(keyspace.key(key), b"{}") for key in keys),
        *(DeleteKey(keyspace.one(key)) for key in old[: len(keys)]),
    ]


class TopicRecords:
    """Creates, changes and deletes topics in etcd. Replies are built from etcd's replies, not from
    the route table.
    """

    def __init__(
        self,
        etcd: RouteStore,
        keyspace: Keyspace,
        oldest_deletions: OldestDeletions,
        wait_broker: Callable[[], Awaitable[None]],
    ) -> None:
        self._etcd = etcd
        self._keyspace = keyspace
        self._oldest_deletions = oldest_deletions
        self._wait_broker = wait_broker

    async def create(self, request: CreateTopicRequest, *, wait: bool = True) -> TopicReply:
        """Create a topic and its queues at one revision.

        Args:
            request: not checked before.
            wait: if no broker is live, wait shortly: the cluster may have just started.

        Raises:
            InvalidTopicName: the name is invalid.
            InvalidArgument: a setting or placement is invalid.
            BrokerNotFound: a placement names no live broker.
            NoWritableQueue: without placements, if no broker is live.
            TopicExists: it exists, and `if_absent` was not given.
            Busy: a chosen broker has left `ATTEMPTS_MAX` times.
        """
        config = checked_topic(request.config)
        key, blocks = TopicKey(config.name), self._keyspace.blocks(config.name)
        if request.if_absent:
            # Before the check for live brokers: an existing topic needs none.
            found = await self._etcd.read_at_once(self._keyspace.one(key), blocks)
            if found[0]:
                return existing(self.stored(key, found))
        for _ in range(ATTEMPTS_MAX):
            alive = await self.live_brokers(wait=wait)
            new = planned(request, alive)
            outcome = await self._etcd.transaction(
                [absent(self._keyspace.one(key)), *still_live(new.placements, alive)],
                self._puts_of(new),
                otherwise=[self._keyspace.one(key), blocks],
            )
            if outcome.succeeded:
                return new.made(outcome.revision)
            if outcome.found[0]:
                if not request.if_absent:
                    raise TopicExists(topic=config.name)
                return existing(self.stored(key, outcome.found))
        raise Busy(reason=f"brokers of topic {config.name!r} keep leaving: try again")

    async def create_many(self, requests: Sequence[CreateTopicRequest]) -> CreateTopicsReply:
        """Create topics like `create`, as many in one transaction as etcd accepts.

        Raises:
            InvalidArgument: they are too many.
            EtcdUnavailable: some may have been created.
        """
        if len(requests) > TOPICS_AT_ONCE_MAX:
            raise InvalidArgument(
                reason=f"{len(requests)} topics in one call: name at most {TOPICS_AT_ONCE_MAX}"
            )
        reply = CreateTopicsReply()
        alive = await self.live_brokers(wait=True)
        for part in in_transactions(requests, alive):
            for answer in await self._create_part(part, alive):
                if isinstance(answer, RockoonError):
                    reply.results.add(error=answer.to_wire())
                else:
                    reply.results.add(topic=answer.topic, created=answer.created)
                    reply.revision = max(reply.revision, answer.revision)
        return reply

    async def _create_part(
        self,
        part: Sequence[tuple[CreateTopicRequest, "NewTopic | None"]],
        alive: Mapping[str, "LiveBroker"],
    ) -> list[TopicReply | RockoonError]:
        new = [each for _, each in part if each is not None]
        if len(new) == len(part) > 0:
            keys = [TopicKey(each.config.name) for each in new]
            outcome = await self._etcd.transaction(
                [
                    *(absent(self._keyspace.one(key)) for key in keys),
                    *still_live([place for each in new for place in each.placements], alive),
                ],
                [put for each in new for put in self._puts_of(each)],
                otherwise=[
                    key_range
                    for key in keys
                    for key_range in (self._keyspace.one(key), self._keyspace.blocks(key.topic))
                ],
            )
            if outcome.succeeded:
                return [each.made(outcome.revision) for each in new]
            found = list(zip(outcome.found[::2], outcome.found[1::2], strict=True))
            if all(items for items, _ in found) and all(request.if_absent for request, _ in part):
                return [
                    existing(self.stored(key, each)) for key, each in zip(keys, found, strict=True)
                ]
        # At least one exists or is refused: single transactions return a result for each.
        answers: list[TopicReply | RockoonError] = []
        for request, _ in part:
            try:
                answers.append(await self.create(request, wait=False))
            except EtcdUnavailable:
                raise
            except RockoonError as refusal:
                answers.append(refusal)
        return answers

    async def update(self, request: UpdateTopicRequest) -> TopicReply:
        """Change a topic, and add queues after the existing ones on each broker.

        Raises:
            TopicNotFound: the topic does not exist.
            TopicChanged: its revision is not the expected one.
            BrokerNotFound: a placement names no live broker.
            InvalidArgument: a setting or placement is invalid.
            Busy: concurrent changes won `ATTEMPTS_MAX` times.
        """
        refuse_impossible_topic(request.name)
        placements = checked_placements(request.add)
        key = TopicKey(request.name)
        one, blocks = self._keyspace.one(key), self._keyspace.blocks(request.name)
        for _ in range(ATTEMPTS_MAX):
            alive = await self.live_brokers() if placements else {}
            refuse_dead_brokers(placements, alive)
            found = await self._etcd.read_at_once(one, blocks)
            if not found[0]:
                raise TopicNotFound(topic=request.name)
            topic = self.stored(key, found)
            expected = request.expected_modified_revision
            if expected and expected != topic.modified_revision:
                raise TopicChanged(topic=request.name)
            config = changed_topic(topic.config, request)
            if config == topic.config and not placements:
                return existing(topic)
            new = [
                BlockKey(request.name, placement.broker, next_queue_id(topic, placement.broker))
                for placement in placements
            ]
            outcome = await self._etcd.transaction(
                [
                    unchanged(self._keyspace.key(key), topic.modified_revision),
                    *still_live(placements, alive),
                ],
                [
                    PutKey(self._keyspace.key(key), topic_value(config)),
                    *self.puts(new, placements),
                ],
            )
            if outcome.succeeded:
                topic.config.CopyFrom(config)
                topic.modified_revision = outcome.revision
                topic.blocks.extend(new_blocks(new, placements, outcome.revision))
                sort_blocks(topic)
                return TopicReply(topic=topic, revision=outcome.revision)
        raise Busy(reason=f"topic {request.name!r} keeps changing: try again")

    async def delete(self, request: DeleteTopicRequest) -> DeleteReply:
        """Delete a topic, its queues and the subscriptions to it, at one revision.

        Raises:
            TopicNotFound: the topic does not exist.
            TopicChanged: its revision is not the expected one.
        """
        name, expected = request.name, request.expected_modified_revision
        refuse_impossible_topic(name)
        key = TopicKey(name)
        stored_key = self._keyspace.key(key)
        outcome = await self._etcd.transaction(
            [unchanged(stored_key, expected) if expected else exists(stored_key)],
            [
                DeleteKey(self._keyspace.one(key)),
                DeleteKey(self._keyspace.blocks(name)),
                DeleteKey(self._keyspace.subscriptions_to(name)),
                *deletion_records(self._keyspace, self._oldest_deletions, DeletionKey(topic=name)),
            ],
        )
        if not outcome.succeeded:
            if expected and (await self._etcd.read_at_once(self._keyspace.one(key)))[0]:
                raise TopicChanged(topic=name)
            raise TopicNotFound(topic=name)
        return DeleteReply(revision=outcome.revision)

    def _puts_of(self, new: "NewTopic") -> list[PutKey]:
        key = self._keyspace.key(TopicKey(new.config.name))
        return [PutKey(key, topic_value(new.config)), *self.puts(new.blocks, new.placements)]

    async def live_brokers(self, *, wait: bool = False) -> Mapping[str, "LiveBroker"]:
        """Return the live brokers by name; `wait` as in `create`."""
        alive = await self._live_brokers()
        if wait and not alive:
            await self._wait_broker()
            alive = await self._live_brokers()
        return alive

    async def _live_brokers(self) -> Mapping[str, "LiveBroker"]:
        # From etcd and not from the route table: a broker that has just registered counts.
        nodes, replicas = await self._etcd.read_at_once(
            self._keyspace.nodes(BROKER), self._keyspace.replicas(BROKER)
        )
        found: dict[str, LiveBroker] = {}
        for item in (*nodes, *replicas):
            key = self._keyspace.parse(item.key)
            if isinstance(key, NodeKey | ReplicaKey):
                node = read_node(key, item.value)
                is_drained = node.drained and (
                    node.name not in found or found[node.name].is_drained
                )
                registrations = (
                    self._keyspace.one(key)
                    if isinstance(key, NodeKey)
                    else self._keyspace.replicas(BROKER, key.log)
                )
                found[node.name] = LiveBroker(is_drained, registrations)
        return found

    def puts(self, blocks: Sequence[BlockKey], placements: Sequence[Placement]) -> list[PutKey]:
        return [
            PutKey(self._keyspace.key(block), block_value(placement.queues))
            for block, placement in zip(blocks, placements, strict=True)
        ]

    def stored(self, key: TopicKey, found: Sequence[Sequence[KeyValue]]) -> Topic:
        """Build a topic from its key and its blocks' keys, read at one revision."""
        [item], blocks = found
        topic = Topic(
            config=read_topic(key, item.value),
            incarnation=item.create_revision,
            modified_revision=item.mod_revision,
        )
        for block in blocks:
            block_key = self._keyspace.parse(block.key)
            assert isinstance(block_key, BlockKey)
            topic.blocks.add(
                broker=block_key.broker,
                first_queue_id=block_key.first_queue_id,
                queues=read_block(block.value),
                create_revision=block.create_revision,
            )
        sort_blocks(topic)
        return topic


class LiveBroker(NamedTuple):
    """A broker that is registered.

    Attributes:
        is_drained: the broker is drained. For a log with copies: all its live replicas have
            reported the drain.
        registrations: keys of the broker, or of the log's live replicas.
    """

    is_drained: bool
    registrations: KeyRange


def still_live(
    placements: Iterable[Placement], alive: Mapping[str, LiveBroker]
) -> list[KeyCondition]:
    """Return the conditions that brokers are still live. Without them, a topic could get queues on
    a broker that is removed at the same time.
    """
    names = sorted({each.broker for each in placements})
    return [KeyCondition(alive[name].registrations, "create", ">", 0) for name in names]


def accepting(alive: Mapping[str, LiveBroker]) -> list[str]:
    """Return the brokers for new queues: those that are not drained, or all if all are."""
    return sorted(name for name, each in alive.items() if not each.is_drained) or sorted(alive)


class NewTopic(NamedTuple):
    """A topic to create, from a valid request."""

    config: TopicConfig
    placements: Sequence[Placement]

    @property
    def blocks(self) -> list[BlockKey]:
        return [BlockKey(self.config.name, each.broker, 0) for each in self.placements]

    def made(self, revision: int) -> TopicReply:
        topic = Topic(
            config=self.config,
            incarnation=revision,
            modified_revision=revision,
            blocks=new_blocks(self.blocks, self.placements, revision),
        )
        sort_blocks(topic)
        return TopicReply(topic=topic, revision=revision, created=True)


def planned(request: CreateTopicRequest, alive: Mapping[str, LiveBroker]) -> NewTopic:
    """Return the topic of an unchecked request; errors like `TopicRecords.create`."""
    config = checked_topic(request.config)
    placements = checked_placements(request.placements)
    refuse_dead_brokers(placements, alive)
    if not placements:
        if not alive:
            raise NoWritableQueue(
                f"no broker is live to store the queues of topic {config.name!r}: start one",
                topic=config.name,
            )
        queues = request.queues_per_broker or QUEUES_PER_BROKER_DEFAULT
        everywhere = [Placement(broker=name, queues=queues) for name in accepting(alive)]
        placements = checked_placements(everywhere)
    return NewTopic(config, placements)


def in_transactions(
    requests: Iterable[CreateTopicRequest], alive: Mapping[str, LiveBroker]
) -> Iterator[list[tuple[CreateTopicRequest, NewTopic | None]]]:
    """Group requests by transaction, in their order; None: the request is refused."""
    part: list[tuple[CreateTopicRequest, NewTopic | None]] = []
    names: set[str] = set()
    operations = 0
    for request in requests:
        try:
            new = planned(request, alive)
        except RockoonError:
            new = None
        needed = 0 if new is None else 1 + len(new.placements)
        # A refused request is a part alone, and no transaction puts a key twice.
        alone = new is None or (part and part[-1][1] is None) or request.config.name in names
        if part and (alone or operations + needed > TRANSACTION_OPERATIONS_MAX):
            yield part
            part, names, operations = [], set(), 0
        part.append((request, new))
        names.add(request.config.name)
        operations += needed
    if part:
        yield part


def refuse_dead_brokers(placements: Sequence[Placement], alive: Collection[str]) -> None:
    """Raises BrokerNotFound if a topic's queues are requested on a broker that is not live."""
    for placement in placements:
        if placement.broker not in alive:
            raise BrokerNotFound(broker=placement.broker)


def existing(topic: Topic) -> TopicReply:
    # Not the revision of the read: only revisions of our own keys are sure to reach every cache.
    return TopicReply(topic=topic, revision=topic.modified_revision)


def next_queue_id(topic: Topic, broker: str) -> int:
    return max(
        (block.first_queue_id + block.queues for block in topic.blocks if block.broker == broker),
        default=0,
    )


def new_blocks(
    blocks: Sequence[BlockKey], placements: Sequence[Placement], revision: int
) -> list[QueueBlock]:
    return [
        QueueBlock(
            broker=block.broker,
            first_queue_id=block.first_queue_id,
            queues=placement.queues,
            create_revision=revision,
        )
        for block, placement in zip(blocks, placements, strict=True)
    ]


def sort_blocks(topic: Topic) -> None:
    topic.blocks.sort(key=lambda block: (block.broker, block.first_queue_id))
