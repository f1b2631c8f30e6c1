"""Creating, changing and deleting topics: one transaction each, so create revisions have one order.

A topic's key is put again with every change of its queues: its modification revision is what
concurrent changes are decided by.
"""

from collections.abc import Callable, Sequence

from rockoon_core.errors import (
    BrokerNotFound,
    Busy,
    NoWritableQueue,
    TopicChanged,
    TopicExists,
    TopicNotFound,
)
from rockoon_nameserver.etcd_data import (
    Delete,
    KeyValue,
    Put,
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
    read_topic,
    topic_value,
)
from rockoon_nameserver.request_checks import (
    changed_topic,
    checked_placements,
    checked_topic,
    refuse_impossible_topic,
)
from rockoon_nameserver.route_store import RouteStore
from rockoon_proto.v1.nameserver_pb2 import (
    BROKER,
    CreateTopicRequest,
    DeleteReply,
    Placement,
    QueueBlock,
    Topic,
    TopicReply,
    UpdateTopicRequest,
)

QUEUES_PER_BROKER_DEFAULT = 4
ATTEMPTS_MAX = 8


# Which notes of deletions are to go when so many are added.
Forgotten = Callable[[int], Sequence[DeletionKey]]


def notes(keyspace: Keyspace, forgotten: Forgotten, *keys: DeletionKey) -> list[Put | Delete]:
    """What notes deletions in the transaction that makes them.

    Who was away learns from a note that something was deleted. What is missing without one was lost
    with etcd's data, and progress and messages stay.
    """
    old = [key for key in forgotten(len(keys)) if key not in keys]
    return [
        *(Put(keyspace.key(key), b"{}") for key in keys),
        *(Delete(keyspace.one(key)) for key in old[: len(keys)]),
    ]


class Topics:
    """Changes topics in etcd; the answers are made from what etcd said, not from the cache."""

    def __init__(
        self, etcd: RouteStore, keyspace: Keyspace, forgotten: Forgotten = lambda _: ()
    ) -> None:
        self._etcd = etcd
        self._keyspace = keyspace
        self._forgotten = forgotten

    async def create(self, request: CreateTopicRequest) -> TopicReply:
        """Create a topic and its queues at one revision.

        Raises:
            InvalidTopicName, InvalidArgument: as the text says.
            BrokerNotFound: a placement names no live broker.
            NoWritableQueue: without placements, when no broker is alive.
            TopicExists: it exists, and `if_absent` was not given.
        """
        config = checked_topic(request.config)
        placements = checked_placements(request.placements)
        key, blocks = TopicKey(config.name), self._keyspace.blocks(config.name)
        if request.if_absent:
            # Also when no broker is alive: what exists needs none.
            found = await self._etcd.read_together(self._keyspace.one(key), blocks)
            if found[0]:
                return existing(self.stored(key, found))
        if not placements:
            placements = await self._everywhere(config.name, request.queues_per_broker)
        else:
            await self._refuse_dead_brokers(placements)
        new = [BlockKey(config.name, placement.broker, 0) for placement in placements]
        outcome = await self._etcd.transaction(
            [absent(self._keyspace.one(key))],
            [
                Put(self._keyspace.key(key), topic_value(config)),
                *self.puts(new, placements),
            ],
            otherwise=[self._keyspace.one(key), blocks],
        )
        if not outcome.succeeded:
            if not request.if_absent:
                raise TopicExists(topic=config.name)
            return existing(self.stored(key, outcome.found))
        topic = Topic(
            config=config,
            incarnation=outcome.revision,
            modified_revision=outcome.revision,
            blocks=born(new, placements, outcome.revision),
        )
        sort_blocks(topic)
        return TopicReply(topic=topic, revision=outcome.revision, created=True)

    async def update(self, request: UpdateTopicRequest) -> TopicReply:
        """Change a topic, and add queues behind those it has on each broker.

        Raises:
            TopicNotFound, TopicChanged, BrokerNotFound, InvalidArgument: as the text says.
            Busy: others kept changing the topic.
        """
        refuse_impossible_topic(request.name)
        placements = checked_placements(request.add)
        if placements:
            await self._refuse_dead_brokers(placements)
        key = TopicKey(request.name)
        one, blocks = self._keyspace.one(key), self._keyspace.blocks(request.name)
        for _ in range(ATTEMPTS_MAX):
            found = await self._etcd.read_together(one, blocks)
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
                [unchanged(self._keyspace.key(key), topic.modified_revision)],
                [
                    Put(self._keyspace.key(key), topic_value(config)),
                    *self.puts(new, placements),
                ],
            )
            if outcome.succeeded:
                topic.config.CopyFrom(config)
                topic.modified_revision = outcome.revision
                topic.blocks.extend(born(new, placements, outcome.revision))
                sort_blocks(topic)
                return TopicReply(topic=topic, revision=outcome.revision)
        raise Busy(reason=f"others keep changing topic {request.name!r}")

    async def delete(self, name: str) -> DeleteReply:
        """Delete a topic, its queues and the subscriptions to it, at one revision.

        Raises:
            TopicNotFound: there is none.
        """
        refuse_impossible_topic(name)
        key = TopicKey(name)
        outcome = await self._etcd.transaction(
            [exists(self._keyspace.key(key))],
            [
                Delete(self._keyspace.one(key)),
                Delete(self._keyspace.blocks(name)),
                Delete(self._keyspace.subscriptions_to(name)),
                *notes(self._keyspace, self._forgotten, DeletionKey(topic=name)),
            ],
        )
        if not outcome.succeeded:
            raise TopicNotFound(topic=name)
        return DeleteReply(revision=outcome.revision)

    async def _everywhere(self, topic: str, queues: int) -> list[Placement]:
        """Placements on every live broker."""
        queues = queues or QUEUES_PER_BROKER_DEFAULT
        brokers = sorted(await self.live_brokers())
        if not brokers:
            raise NoWritableQueue(
                f"no broker is alive to take the queues of topic {topic!r}: start one", topic=topic
            )
        return checked_placements([Placement(broker=name, queues=queues) for name in brokers])

    async def _refuse_dead_brokers(self, placements: Sequence[Placement]) -> None:
        alive = await self.live_brokers()
        for placement in placements:
            if placement.broker not in alive:
                raise BrokerNotFound(broker=placement.broker)

    async def live_brokers(self) -> set[str]:
        # From etcd and not from the cache: a broker that has just registered counts.
        nodes, replicas = await self._etcd.read_together(
            self._keyspace.nodes(BROKER), self._keyspace.replicas(BROKER)
        )
        keys = [self._keyspace.parse(item.key) for item in (*nodes, *replicas)]
        return {
            key.name if isinstance(key, NodeKey) else key.log
            for key in keys
            if isinstance(key, NodeKey | ReplicaKey)
        }

    def puts(self, blocks: Sequence[BlockKey], placements: Sequence[Placement]) -> list[Put]:
        return [
            Put(self._keyspace.key(block), block_value(placement.queues))
            for block, placement in zip(blocks, placements, strict=True)
        ]

    def stored(self, key: TopicKey, found: Sequence[Sequence[KeyValue]]) -> Topic:
        """The topic whose key, and whose blocks' keys, were read together."""
        [item], blocks = found
        topic = Topic(
            config=read_topic(key, item.value),
            incarnation=item.create_revision,
            modified_revision=item.mod_revision,
        )
        for block in blocks:
            place = self._keyspace.parse(block.key)
            assert isinstance(place, BlockKey)
            topic.blocks.add(
                broker=place.broker,
                first_queue_id=place.first_queue_id,
                queues=read_block(block.value),
                create_revision=block.create_revision,
            )
        sort_blocks(topic)
        return topic


def existing(topic: Topic) -> TopicReply:
    # Not the revision it was read at: only changes of ours are sure to reach every cache.
    return TopicReply(topic=topic, revision=topic.modified_revision)


def next_queue_id(topic: Topic, broker: str) -> int:
    return max(
        (block.first_queue_id + block.queues for block in topic.blocks if block.broker == broker),
        default=0,
    )


def born(
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
