"""Consumer groups in etcd: create, update, delete; records of the topics that they read."""

from rockoon_core.errors import Busy, GroupExists, GroupNotFound, TopicNotFound
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
from rockoon_nameserver.group_topics import deletions
from rockoon_nameserver.keyspace import (
    DeletionKey,
    GroupKey,
    Keyspace,
    SubscriptionKey,
    TopicKey,
    group_value,
    read_group,
)
from rockoon_nameserver.request_checks import (
    checked_group,
    refuse_impossible_group,
    refuse_impossible_topic,
)
from rockoon_nameserver.route_store import RouteStore
from rockoon_nameserver.topics import OldestDeletions, deletion_records
from rockoon_proto.v1.nameserver_pb2 import (
    CreateGroupRequest,
    DeleteReply,
    Group,
    GroupConfig,
    GroupReply,
    SubscribeReply,
    SubscribeRequest,
    Subscription,
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

    async def delete(self, name: str) -> DeleteReply:
        """Delete a consumer group, its subscriptions, and its retry and dead-letter topics.

        All at one revision, unless they are more than etcd accepts in one transaction: then the
        group is deleted by the last of several.

        Raises:
            GroupNotFound: the group does not exist.
            Busy: new subscriptions won `ATTEMPTS_MAX` times.
        """
        refuse_impossible_group(name)
        group = self._keyspace.key(GroupKey(name))
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
                await self._etcd.transaction([], [DeleteKey(key_range) for key_range in some])
            # A subscription created after the read would outlive its group.
            outcome = await self._etcd.transaction(
                [exists(group), not_put_since(every, read.header.revision)],
                [DeleteKey(only(group)), *topics, *(DeleteKey(key_range) for key_range in own)],
                otherwise=[only(group)],
            )
            if outcome.succeeded:
                return DeleteReply(revision=outcome.revision)
            if not outcome.found[0]:
                raise GroupNotFound(group=name)
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
