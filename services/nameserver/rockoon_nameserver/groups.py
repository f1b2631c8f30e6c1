"""Consumer groups in etcd: create, update, delete; the topics that they read, and their own topics
(%RETRY%GROUP and %DLQ%GROUP).
"""

from rockoon_core.errors import (
    Busy,
    GroupChanged,
    GroupExists,
    GroupNotFound,
    InvalidArgument,
    TopicNotFound,
)
from rockoon_core.group_settings import RETRY_QUEUES_DEFAULT
from rockoon_core.route_checks import (
    PLACEMENTS_MAX,
    QUEUES_PER_BLOCK_MAX,
    READ_AND_WRITE,
    checked_group,
)
from rockoon_format.names import dlq_topic, retry_topic
from rockoon_nameserver.etcd_data import (
    TRANSACTION_OPERATIONS_MAX,
    DeleteKey,
    KeyValue,
    PutKey,
    absent,
    exists,
    not_put_since,
    only,
    unchanged,
)
from rockoon_nameserver.keyspace import (
    PATH_PART,
    BlockKey,
    DeletionKey,
    GroupKey,
    Keyspace,
    SubscriptionKey,
    TopicKey,
    group_value,
    read_group,
    topic_value,
)
from rockoon_nameserver.request_checks import refuse_impossible_group, refuse_impossible_topic
from rockoon_nameserver.route_store import RouteStore
from rockoon_nameserver.topics import (
    OldestDeletions,
    TopicRecords,
    accepting,
    deletion_records,
    existing,
    new_blocks,
    next_queue_id,
    sort_blocks,
)
from rockoon_proto.v1.nameserver_pb2 import (
    GROUP_DEAD_LETTERS,
    GROUP_RETRY,
    CreateGroupRequest,
    DeleteGroupRequest,
    DeleteReply,
    Group,
    GroupConfig,
    GroupReply,
    GroupTopic,
    Placement,
    ProvideGroupTopicRequest,
    SubscribeReply,
    SubscribeRequest,
    Subscription,
    Topic,
    TopicConfig,
    TopicReply,
    UpdateGroupRequest,
)

ATTEMPTS_MAX = 8


class GroupRecords:
    """Creates, changes and deletes consumer groups and their subscriptions in etcd."""

    def __init__(
        self, etcd: RouteStore, keyspace: Keyspace, oldest_deletions: OldestDeletions = lambda _: ()
    ) -> None:
        self._etcd = etcd
        self._keyspace = keyspace
        self._oldest_deletions = oldest_deletions

    async def create(self, request: CreateGroupRequest) -> GroupReply:
        """Create a consumer group.

        Raises:
            InvalidGroupName: the name is invalid.
            InvalidArgument: a setting is invalid.
            GroupExists: it exists, and `if_absent` was not given.
        """
        config = checked_group(request.config)
        key = GroupKey(config.name)
        one = self._keyspace.one(key)
        outcome = await self._etcd.transaction(
            [absent(one)], [PutKey(self._keyspace.key(key), group_value(config))], otherwise=[one]
        )
        if outcome.succeeded:
            group = Group(
                config=config, incarnation=outcome.revision, modified_revision=outcome.revision
            )
            return GroupReply(group=group, revision=outcome.revision, created=True)
        if not request.if_absent:
            raise GroupExists(group=config.name)
        group = stored_group(key, outcome.found[0][0])
        return GroupReply(group=group, revision=group.modified_revision)

    async def update(self, request: UpdateGroupRequest) -> GroupReply:
        """Replace a consumer group's configuration.

        Raises:
            GroupNotFound: the group does not exist.
            GroupChanged: its revision is not the expected one.
            InvalidArgument: a setting is invalid.
            Busy: concurrent changes won `ATTEMPTS_MAX` times.
        """
        refuse_impossible_group(request.config.name)
        config = checked_group(request.config)
        key = GroupKey(config.name)
        for _ in range(ATTEMPTS_MAX):
            found = (await self._etcd.read(self._keyspace.one(key))).items
            if not found:
                raise GroupNotFound(group=config.name)
            if request.expected_modified_revision not in (0, found[0].mod_revision):
                raise GroupChanged(group=config.name)
            outcome = await self._etcd.transaction(
                [unchanged(found[0].key, found[0].mod_revision)],
                [PutKey(found[0].key, group_value(config))],
            )
            if outcome.succeeded:
                group = Group(
                    config=config,
                    incarnation=found[0].create_revision,
                    modified_revision=outcome.revision,
                )
                return GroupReply(group=group, revision=outcome.revision)
        raise Busy(reason=f"group {config.name!r} keeps changing: try again")

    async def delete(self, request: DeleteGroupRequest) -> DeleteReply:
        """Delete a consumer group, its subscriptions, and its retry and dead-letter topics.

        All at one revision, unless they are more than etcd accepts in one transaction: then the
        group is deleted by the last of several.

        Raises:
            GroupNotFound: the group does not exist.
            GroupChanged: its revision is not the expected one.
            Busy: new subscriptions won `ATTEMPTS_MAX` times.
        """
        name, expected = request.name, request.expected_modified_revision
        refuse_impossible_group(name)
        group = self._keyspace.key(GroupKey(name))
        present = unchanged(group, expected) if expected else exists(group)
        every = self._keyspace.subscriptions()
        topics: list[PutKey | DeleteKey] = [*deletions(self._keyspace, name)]
        deleted = DeletionKey(group=name), *map(DeletionKey, (retry_topic(name), dlq_topic(name)))
        topics += deletion_records(self._keyspace, self._oldest_deletions, *deleted)
        own_max = TRANSACTION_OPERATIONS_MAX - 1 - len(topics)
        for _ in range(ATTEMPTS_MAX):
            read = await self._etcd.read(every)
            own = [only(item.key) for item in read.items if item.key.endswith(f"/{name}")]
            while len(own) > own_max:
                some, own = own[:own_max], own[own_max:]
                await self._etcd.transaction(
                    [present], [DeleteKey(key_range) for key_range in some]
                )
            # A subscription created after the read would outlive its group.
            outcome = await self._etcd.transaction(
                [present, not_put_since(every, read.header.revision)],
                [DeleteKey(only(group)), *topics, *(DeleteKey(key_range) for key_range in own)],
                otherwise=[only(group)],
            )
            if outcome.succeeded:
                return DeleteReply(revision=outcome.revision)
            if not outcome.found[0]:
                raise GroupNotFound(group=name)
            if expected not in (0, outcome.found[0][0].mod_revision):
                raise GroupChanged(group=name)
        raise Busy(reason="groups keep subscribing: try again")

    async def subscribe(self, request: SubscribeRequest) -> SubscribeReply:
        """Record that a group reads a topic; the first record stays.

        Raises:
            TopicNotFound: the topic does not exist.
            GroupNotFound: the group does not exist, and `create_group` was not given.
            InvalidGroupName: the group cannot be created under that name.
            Busy: topic or group changed during `ATTEMPTS_MAX` attempts.
        """
        refuse_impossible_topic(request.topic)
        config = GroupConfig(name=request.group)
        if request.create_group:
            checked_group(config)
        else:
            refuse_impossible_group(request.group)
        group, topic = GroupKey(request.group), TopicKey(request.topic)
        key = SubscriptionKey(request.topic, request.group)
        for _ in range(ATTEMPTS_MAX):
            groups, topics, records = await self._etcd.read_at_once(
                self._keyspace.one(group), self._keyspace.one(topic), self._keyspace.one(key)
            )
            if not topics:
                raise TopicNotFound(topic=request.topic)
            if not groups and not request.create_group:
                raise GroupNotFound(group=request.group)
            if groups and records:
                return subscribed(key, records[0].create_revision, stored_group(group, groups[0]))
            operations = [PutKey(self._keyspace.key(key), b"{}")]
            if not groups:
                operations.append(PutKey(self._keyspace.key(group), group_value(config)))
            outcome = await self._etcd.transaction(
                [
                    unchanged(topics[0].key, topics[0].mod_revision),
                    unchanged(self._keyspace.key(group), groups[0].mod_revision if groups else 0),
                    unchanged(self._keyspace.key(key), 0),
                ],
                operations,
            )
            if outcome.succeeded:
                made = Group(
                    config=config, incarnation=outcome.revision, modified_revision=outcome.revision
                )
                known = stored_group(group, groups[0]) if groups else made
                return subscribed(key, outcome.revision, known, created=True)
        raise Busy(reason=f"topic {request.topic!r} or group {request.group!r} keeps changing")


def stored_group(key: GroupKey, item: KeyValue) -> Group:
    return Group(
        config=read_group(key, item.value),
        incarnation=item.create_revision,
        modified_revision=item.mod_revision,
    )


def subscribed(
    key: SubscriptionKey, revision: int, group: Group, *, created: bool = False
) -> SubscribeReply:
    return SubscribeReply(
        subscription=Subscription(group=key.group, topic=key.topic, revision=revision),
        group=group,
        revision=max(revision, group.modified_revision),
        created=created,
    )


DEAD_LETTER_QUEUES = 1


class GroupTopics:
    """Creates the retry and dead-letter topics of consumer groups in etcd.

    They are created on first need: the retry topic when a consumer starts, on each live broker that
    is not drained, and either topic when a broker that has no queue for it must store a message. So
    a broker that joins later gets its queues with the first message that fails there.
    """

    def __init__(self, etcd: RouteStore, keyspace: Keyspace, topics: TopicRecords) -> None:
        self._etcd = etcd
        self._keyspace = keyspace
        self._topics = topics

    async def provide(self, request: ProvideGroupTopicRequest) -> TopicReply:
        """Create a topic of a group, or add the queues that the topic lacks on the requested
        brokers.

        Raises:
            GroupNotFound: the group does not exist.
            InvalidArgument: the topic is neither the group's retry topic nor its dead-letter topic,
                the broker's name is invalid, or the number of queues is out of range.
            Busy: concurrent changes of the topic won `ATTEMPTS_MAX` times.
        """
        refuse_impossible_group(request.group)
        name = name_of(request.group, request.topic)
        if request.broker and not PATH_PART.fullmatch(request.broker):
            raise InvalidArgument(reason=f"{request.broker!r} is not a broker's name")
        if not 0 <= request.queues <= QUEUES_PER_BLOCK_MAX:
            raise InvalidArgument(reason=f"queues {request.queues}: 0 to {QUEUES_PER_BLOCK_MAX}")
        brokers = (
            [request.broker] if request.broker else accepting(await self._topics.live_brokers())
        )
        group, topic_key = GroupKey(request.group), TopicKey(name)
        for _ in range(ATTEMPTS_MAX):
            groups, items, blocks = await self._etcd.read_at_once(
                self._keyspace.one(group),
                self._keyspace.one(topic_key),
                self._keyspace.blocks(name),
            )
            if not groups:
                raise GroupNotFound(group=request.group)
            topic = Topic(config=TopicConfig(name=name, permissions=READ_AND_WRITE))
            if items:
                topic = self._topics.stored(topic_key, [items, blocks])
            config = read_group(group, groups[0].value)
            queues = max(request.queues, queues_of(config, request.topic))
            missing = missing_placements(topic, brokers, queues)
            if items and not missing:
                return existing(topic)
            new = [
                BlockKey(name, each.broker, next_queue_id(topic, each.broker)) for each in missing
            ]
            key = self._keyspace.key(topic_key)
            outcome = await self._etcd.transaction(
                [exists(self._keyspace.key(group)), unchanged(key, topic.modified_revision)],
                [PutKey(key, topic_value(topic.config)), *self._topics.puts(new, missing)],
            )
            if outcome.succeeded:
                topic.incarnation = topic.incarnation or outcome.revision
                topic.modified_revision = outcome.revision
                topic.blocks.extend(new_blocks(new, missing, outcome.revision))
                sort_blocks(topic)
                return TopicReply(topic=topic, revision=outcome.revision, created=not items)
        raise Busy(reason=f"topic {name!r} keeps changing: try again")


def name_of(group: str, topic: GroupTopic) -> str:
    if topic == GROUP_RETRY:
        return retry_topic(group)
    if topic == GROUP_DEAD_LETTERS:
        return dlq_topic(group)
    raise InvalidArgument(reason=f"{topic} is not a topic of a group")


def queues_of(config: GroupConfig, topic: GroupTopic) -> int:
    """Return the number of queues that a retry or dead-letter topic should have on each broker."""
    if topic == GROUP_DEAD_LETTERS:
        return DEAD_LETTER_QUEUES
    return config.retry_queues if config.HasField("retry_queues") else RETRY_QUEUES_DEFAULT


def missing_placements(topic: Topic, brokers: list[str], queues: int) -> list[Placement]:
    """Return the queues to add so that each broker has at least `queues`.

    At most as many as fit into one transaction: the other brokers get theirs when they need them.
    """
    missing = []
    for broker in brokers:
        lacks = queues - next_queue_id(topic, broker)
        if lacks > 0:
            missing.append(Placement(broker=broker, queues=lacks))
    return missing[:PLACEMENTS_MAX]


def deletions(keyspace: Keyspace, group: str) -> list[DeleteKey]:
    """Return the operations that delete the retry and dead-letter topics of a group."""
    return [
        DeleteKey(key_range)
        for topic in (retry_topic(group), dlq_topic(group))
        for key_range in (
            keyspace.one(TopicKey(topic)),
            keyspace.blocks(topic),
            keyspace.subscriptions_to(topic),
        )
    ]
