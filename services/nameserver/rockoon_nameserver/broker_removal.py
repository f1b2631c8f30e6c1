"""Removal of a broker from the routes in etcd: its queues, its log and its live settings."""

from collections.abc import Awaitable, Callable

from rockoon_core.errors import Busy, InvalidArgument
from rockoon_format.names import is_dlq_topic, is_retry_topic
from rockoon_nameserver.etcd_data import DeleteKey, PutKey, absent, only, unchanged
from rockoon_nameserver.keyspace import (
    PATH_PART,
    Keyspace,
    LogKey,
    NodeKey,
    TopicKey,
    topic_value,
)
from rockoon_nameserver.route_store import RouteStore
from rockoon_nameserver.topics import ATTEMPTS_MAX, TopicRecords
from rockoon_proto.v1.nameserver_pb2 import BROKER, RemoveBrokerReply, RemoveBrokerRequest, Topic

TOPICS_NAMED_MAX = 5


class BrokerRemoval:
    """Removes brokers from the routes.

    Args:
        topics: finds the live brokers, and reads topics.
        topics_on: returns the topics that have queues on a broker, from the route table.
        reached: waits until the route table includes a revision of etcd.
    """

    def __init__(
        self,
        etcd: RouteStore,
        keyspace: Keyspace,
        topics: TopicRecords,
        topics_on: Callable[[str], list[Topic]],
        reached: Callable[[int], Awaitable[None]],
    ) -> None:
        self._etcd = etcd
        self._keyspace = keyspace
        self._topics = topics
        self._topics_on = topics_on
        self._reached = reached

    async def remove(self, request: RemoveBrokerRequest) -> RemoveBrokerReply:
        """Remove a broker; see RemoveBroker in nameserver.proto.

        Raises:
            InvalidArgument: the broker is live and not drained, or a topic has queues on no other
                broker.
            Busy: concurrent changes of a topic won `ATTEMPTS_MAX` times; some queues may be
                removed.
            NotReady, RouteNotReached: the route table is older than etcd.
        """
        name = request.broker
        if not PATH_PART.fullmatch(name):
            raise InvalidArgument(reason=f"{name[:80]!r} is not a broker's name")
        alive = await self._topics.live_brokers()
        if name in alive and not alive[name].is_drained:
            raise InvalidArgument(
                reason=f"broker {name!r} is live and not drained: run `rockoon broker drain {name}`"
            )
        # A queue that the table does not have yet would stay.
        await self._reached((await self._etcd.header()).revision)
        topics = self._topics_on(name)
        refuse_last_queues(name, topics)
        reply = RemoveBrokerReply(topics=len(topics), live=name in alive)
        for topic in topics:
            reply.revision = await self._remove_queues(topic.config.name, name) or reply.revision
        if name not in alive:
            reply.revision = await self._remove_log(name) or reply.revision
        return reply

    async def _remove_queues(self, topic: str, broker: str) -> int:
        """Remove the queues of a topic on a broker; returns the revision, 0 without a change."""
        keyspace, key = self._keyspace, TopicKey(topic)
        for _ in range(ATTEMPTS_MAX):
            found = await self._etcd.read_at_once(
                keyspace.one(key), keyspace.blocks(topic), keyspace.blocks_on(topic, broker)
            )
            if not found[0] or not found[2]:
                return 0
            stored = self._topics.stored(key, found[:2])
            refuse_last_queues(broker, [stored])
            outcome = await self._etcd.transaction(
                [unchanged(keyspace.key(key), stored.modified_revision)],
                [
                    # Each change of a topic's queues puts its key, so that changes conflict.
                    PutKey(keyspace.key(key), topic_value(stored.config)),
                    DeleteKey(keyspace.blocks_on(topic, broker)),
                ],
            )
            if outcome.succeeded:
                return outcome.revision
        raise Busy(reason=f"topic {topic!r} keeps changing: try again")

    async def _remove_log(self, name: str) -> int:
        """Remove the state of a log and its settings, unless a replica has registered."""
        keyspace, log = self._keyspace, LogKey(BROKER, name)
        outcome = await self._etcd.transaction(
            [
                absent(keyspace.one(NodeKey(BROKER, name))),
                absent(keyspace.replicas(BROKER, name)),
            ],
            [
                DeleteKey(keyspace.one(log)),
                # A new log with this name would need the records of the removed one.
                DeleteKey(only(keyspace.committed_end(log))),
                DeleteKey(keyspace.live_settings("broker", name)),
            ],
        )
        return outcome.revision if outcome.succeeded else 0


def refuse_last_queues(broker: str, topics: list[Topic]) -> None:
    """Raises InvalidArgument if a topic has queues on no other broker. Topics for retries and dead
    letters get queues when they are needed."""
    alone = [
        topic.config.name
        for topic in topics
        if {block.broker for block in topic.blocks} == {broker}
        and not is_retry_topic(topic.config.name)
        and not is_dlq_topic(topic.config.name)
    ]
    if alone:
        named = ", ".join(sorted(alone)[:TOPICS_NAMED_MAX])
        if len(alone) > TOPICS_NAMED_MAX:
            named += f" and {len(alone) - TOPICS_NAMED_MAX} more"
        raise InvalidArgument(
            reason=f"these topics have queues on no broker but {broker!r}: {named}. Add queues "
            "elsewhere with `rockoon topic update TOPIC --add BROKER=N`, or delete them"
        )
