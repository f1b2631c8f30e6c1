"""Receiving engine: shared by all receivers of a connection.

The engine combines the requests of waiting receivers into few calls to the offset service, reads
the granted messages from the brokers once, and combines acknowledgements into few calls.
"""

import asyncio
from collections.abc import Collection, Coroutine, Sequence
from typing import Any

from rockoon.errors import (
    BrokerUnavailable,
    Closed,
    InvalidArgument,
    QueueNotFound,
    RockoonError,
    TopicNotReadable,
)
from rockoon.net.connection import Connection
from rockoon.net.forks import closed
from rockoon.offsets.start import ConsumeFrom
from rockoon.receiving.acquirer import Acquirer, ReceivingGroup
from rockoon.receiving.granting import Granting
from rockoon.receiving.kept_batches import KeptBatches
from rockoon.receiving.offset_reader import OffsetReader
from rockoon.receiving.receive_queue import (
    MESSAGES_MAX,
    ReceiveKey,
    ReceiveQueue,
    ReceiverName,
    WaitingReceiver,
)
from rockoon.receiving.received import ReceiptHandle, ReceivedMessages
from rockoon.receiving.settler import Settler
from rockoon.receiving.tail_reader import TailReader
from rockoon.subscription import Subscription
from rockoon_core.message_queue import MessageQueue
from rockoon_format.names import retry_topic
from rockoon_proto.v1.nameserver_pb2 import GROUP_RETRY, ProvideGroupTopicRequest, SubscribeRequest

VISIBLE_AFTER_MS_MAX = 12 * 3600 * 1000
# If no acquire call was made for a receiver within its wait time, it waits up to this time longer.
GRACE_SECONDS = 10.0
UNUSED_SECONDS = 30.0
# Topics that a group subscribes to concurrently. The nameserver writes each subscription to etcd.
JOINED_TOGETHER_MAX = 64
CLEANING_SECONDS = 10.0
CLOSING_SECONDS_MAX = 2.0
# How long a message stays invisible while it becomes a dead letter.
DEAD_LETTERING_MS = 30_000


class ReceivingEngine:
    """Receives for many receivers of many groups. A connection has one: `Cluster.receiving`."""

    def __init__(self, cluster: Connection) -> None:
        self._cluster = cluster
        self._kept = KeptBatches()
        self._tail_reader = TailReader(cluster, self._kept, self._queue_grown)
        self._reader = OffsetReader(cluster, self._kept, self._tail_reader)
        self._settler = Settler(cluster)
        self._granting = Granting(cluster, self._tail_reader, self._reader, self._settler)
        self._acquirer = Acquirer(cluster, self._tail_reader, self._reader, self._granting.deliver)
        self._granting.set_acquirer(self._acquirer)
        self._groups: dict[str, ReceivingGroup] = {}
        self._receive_queues: dict[ReceiveKey, ReceiveQueue] = {}
        self._is_closed = False
        self._refused_in_child: str | None = None
        self._cleaning: asyncio.TimerHandle | None = None
        cluster.adopt(self)
        self._clean()

    async def close(self) -> None:
        """Fail waiting receivers with `Closed`; release acquired messages without a receiver."""
        if self._is_closed:
            return
        self._is_closed = True
        self._cluster.release(self)
        if self._cleaning is not None:
            self._cleaning.cancel()
        for receive_queue in self._receive_queues.values():
            receive_queue.fail(Closed(what="the connection to the cluster"))
            self._acquirer.update_tracking(receive_queue, self._groups[receive_queue.key.group])
        await self._acquirer.close(CLOSING_SECONDS_MAX)
        await self._granting.close(CLOSING_SECONDS_MAX)
        self._settler.close()
        self._tail_reader.close()

    def start_task(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return self._cluster.tasks.create_task(work, name=name)

    async def receive(
        self,
        group: str,
        subscriptions: Sequence[Subscription],
        *,
        messages_max: int,
        visible_after_ms: int,
        wait_seconds: float,
        attempt_id: str = "",
        message_group_max: int = 0,
        receiver: str = "",
        key_id: str = "",
        held_ms_max: int = 0,
        consume_from: ConsumeFrom = ConsumeFrom.GROUP,
        create_group: bool = True,
    ) -> ReceivedMessages:
        """Acquire messages and read them. A cancelled call releases the messages that it acquired.

        Receivers of a group with equal options get messages in the order of their calls. Messages
        that a filter excludes are acknowledged, so the receivers of a group need equal filters.

        Args:
            subscriptions: the topics to receive from, one or more; each topic once.
            messages_max: 1 to 1024.
            visible_after_ms: how long other receivers do not get the messages, milliseconds, 1 ms
                to 12 hours.
            wait_seconds: how long to wait for the first message; 0: do not wait.
            attempt_id: identifies a receive attempt in a FIFO group: a repeated attempt gets the
                same messages while they are in flight. Empty: attempts are not identified.
            message_group_max: limit of messages of one message group, in a FIFO group; 0: no limit.
            receiver: holder of the messages, by name; empty: the connection's client id.
            key_id: access key of a gateway's client; empty without a gateway.
            held_ms_max: above 0: a gateway reports the receiver while it lives, and the offset
                service extends the messages while it is reported, at most for this time,
                milliseconds.
            consume_from: start position on queues without progress, if the group defines none.
            create_group: create the group if it does not exist.

        Returns:
            At most `messages_max` messages, those of one queue in order; empty after the wait time.

        Raises:
            TopicNotFound, TopicNotReadable, GroupNotFound, NotPermitted: nothing can be received.
            InvalidArgument: an argument is out of its bounds.
            OffsetServiceUnavailable: the service did not answer within the wait time.
            Closed: the connection is closed.
        """
        if not 1 <= messages_max <= MESSAGES_MAX:
            raise InvalidArgument(reason=f"{messages_max} messages, not 1 to {MESSAGES_MAX}")
        _check_visible_after(visible_after_ms, 1)
        if not subscriptions:
            raise InvalidArgument(reason="a receiver needs at least one topic")
        known = await self._join(group, [each.topic for each in subscriptions], create_group)
        wanted = tuple(sorted(subscriptions, key=lambda each: each.topic))
        key = ReceiveKey(group, wanted, visible_after_ms, consume_from, held_ms_max)
        receive_queue = self._receive_queue(known, key)
        name = ReceiverName(receiver or self._cluster.client_id, key_id)
        waiting = WaitingReceiver(messages_max, name, attempt_id, message_group_max)
        receive_queue.add(waiting)
        self._acquirer.receiver_added(receive_queue, known, wait_seconds)
        return await self._messages_of(waiting, receive_queue, known, wait_seconds)

    async def _messages_of(
        self,
        waiting: WaitingReceiver,
        receive_queue: ReceiveQueue,
        group: ReceivingGroup,
        wait_seconds: float,
    ) -> ReceivedMessages:
        """Wait for the messages of a receiver. A cancelled call releases them."""
        timeout = asyncio.get_running_loop().call_later(
            wait_seconds, _expire, receive_queue, waiting
        )
        try:
            return await waiting.messages
        except asyncio.CancelledError:
            got = waiting.messages
            if got.done() and not got.cancelled() and got.exception() is None:
                self._deliver_to_next(receive_queue, group, waiting.name, got.result())
            raise
        finally:
            timeout.cancel()
            receive_queue.remove(waiting)
            self._acquirer.update_tracking(receive_queue, group)

    def has_topic(self, topic: str) -> bool:
        """True if the routes that this connection knows contain the topic."""
        return self._cluster.routes.topic(topic) is not None

    async def wait_routes(self, seconds_max: float) -> bool:
        """Wait for a change of the routes; return False if there was none within the time."""
        try:
            async with asyncio.timeout(seconds_max):
                await self._cluster.routes_changed.wait(self._cluster.routes_changed.count)
        except TimeoutError:
            return False
        return True

    async def acknowledge(
        self, group: str, receipts: Sequence[ReceiptHandle], *, receiver: str = ""
    ) -> list[bool]:
        """Acknowledge messages: no receiver gets them again. A repeated call has no effect.

        Args:
            receiver: acknowledges them; empty: the connection's client id.

        Returns:
            For each message, True if it is acknowledged; False if its receipt is not valid: its
            time is over, its visibility was changed, or the group's progress is past it.

        Raises:
            GroupNotFound: the group does not exist.
            RockoonError: the offset service did not store it within `retry_seconds`.
        """
        receiver = receiver or self._cluster.client_id
        acknowledged = await self._settler.acknowledge(group, receipts, receiver)
        if (known := self._groups.get(group)) is not None:
            self._acquirer.messages_settled(known, None)
        return acknowledged

    async def change_visibility(
        self,
        group: str,
        receipts: Sequence[ReceiptHandle],
        visible_after_ms: int,
        *,
        counted: bool = True,
        extend: bool = False,
    ) -> list[ReceiptHandle | None]:
        """Change how long messages stay invisible.

        Args:
            visible_after_ms: from now, 0 to 12 hours; 0: visible immediately.
            counted: False: the delivery that this call ends does not count as an attempt.
            extend: True: the holder extends its own time, and its receipts stay valid.

        Returns:
            The new receipts; None for a receipt that was not valid.

        Raises:
            GroupNotFound, RockoonError: see `acknowledge`. If the reply of a call is lost, the call
                is repeated. Without `extend`, receipts that the lost call changed are then invalid.
        """
        changed = await self.changed(
            group, receipts, visible_after_ms, counted=counted, extend=extend
        )
        return [None if each is None else each[0] for each in changed]

    async def changed(
        self,
        group: str,
        receipts: Sequence[ReceiptHandle],
        visible_after_ms: int,
        *,
        counted: bool = True,
        extend: bool = False,
        reason: str = "",
    ) -> list[tuple[ReceiptHandle, int] | None]:
        """Like `change_visibility`. Each receipt has the time at which its message becomes visible.
        `reason`: why the delivery failed; stored with a later dead letter. Returns the receipt, and
        milliseconds since the epoch by the offset service's clock."""
        _check_visible_after(visible_after_ms, 0)
        changed = await self._settler.change(
            group,
            receipts,
            visible_after_ms,
            uncounted=not counted,
            extend=extend,
            reason=reason,
        )
        if not extend and (known := self._groups.get(group)) is not None:
            self._acquirer.messages_settled(known, visible_after_ms / 1000)
        return changed

    async def dead_letter(
        self,
        group: str,
        receipts: Sequence[ReceiptHandle],
        *,
        reason: str = "",
        attempts: int = 1,
        receiver: str = "",
    ) -> list[bool]:
        """Put messages into the group's dead-letter topic, and acknowledge them.

        Args:
            reason: a text for operators, stored with the dead letters.
            attempts: number of deliveries (`ReceivedMessage.attempt`), stored with them.
            receiver: acknowledges them; empty: the connection's client id.

        Returns:
            See `acknowledge`. A message whose receipt is not valid may be a dead letter.

        Raises:
            BrokerUnavailable: no broker stored some messages, which are still in flight.
            GroupNotFound, RockoonError: see `acknowledge`.
        """
        # Excludes messages of another receiver, and keeps the rest invisible until it is stored.
        held = await self.change_visibility(group, receipts, DEAD_LETTERING_MS, extend=True)
        by_queue: dict[MessageQueue, list[ReceiptHandle]] = {}
        for receipt in held:
            if receipt is not None:
                by_queue.setdefault(receipt.queue, []).append(receipt)
        for queue, some in by_queue.items():
            await self._cluster.route(queue.topic)
            self._tail_reader.of(queue.topic)
            tail = self._tail_reader.find(queue)
            if tail is None:
                raise QueueNotFound(topic=queue.topic, queue=queue.queue_id, broker=queue.broker)
            if not await self._granting.dead_letter(group, tail, some, reason, attempts):
                raise BrokerUnavailable(broker=queue.broker)
        valid = [receipt for receipt in held if receipt is not None]
        acknowledged = iter(await self.acknowledge(group, valid, receiver=receiver))
        return [receipt is not None and next(acknowledged) for receipt in held]

    # Groups and receive queues

    async def _join(self, group: str, topics: Sequence[str], create: bool) -> ReceivingGroup:
        """Subscribe the group to the topics and to its retry topic, which is created if missing."""
        self._check_open()
        known = self._groups.get(group)
        if known is None:
            known = self._groups[group] = ReceivingGroup(group)
        known.joining_receivers += 1
        try:
            await self._join_topics(known, topics, create)
        finally:
            known.joining_receivers -= 1
        self._check_open()
        return known

    async def _join_topics(
        self, known: ReceivingGroup, topics: Sequence[str], create: bool
    ) -> None:
        if known.joined.issuperset(topics):
            return
        async with known.join_lock:
            missing = [topic for topic in topics if topic not in known.joined]
            for at in range(0, len(missing), JOINED_TOGETHER_MAX):
                some = missing[at : at + JOINED_TOGETHER_MAX]
                async with asyncio.TaskGroup() as tasks:
                    joining = [
                        tasks.create_task(self._join_topic(known, topic, create), name="join")
                        for topic in some
                    ]
                for each in joining:
                    if (failure := each.result()) is not None:
                        raise failure
            own = retry_topic(known.name)
            if own not in known.joined:
                request = ProvideGroupTopicRequest(group=known.name, topic=GROUP_RETRY)
                provided = await self._cluster.call_nameserver("ProvideGroupTopic", request)
                await self._cluster.route(own, provided.revision)
                await self._subscribe(known, own, create)

    async def _join_topic(
        self, group: ReceivingGroup, topic: str, create: bool
    ) -> RockoonError | None:
        """Subscribe the group to a topic; return the error if that failed."""
        try:
            route = await self._cluster.route(topic)
            if not route.readable:
                return TopicNotReadable(topic=topic)
            await self._subscribe(group, topic, create)
        except RockoonError as failure:
            return failure
        return None

    async def _subscribe(self, group: ReceivingGroup, topic: str, create: bool) -> None:
        reply = await self._cluster.call_nameserver(
            "Subscribe", SubscribeRequest(group=group.name, topic=topic, create_group=create)
        )
        group.route_revision = max(group.route_revision, reply.revision)
        group.is_fifo = reply.group.config.fifo
        group.joined.add(topic)

    def _receive_queue(self, group: ReceivingGroup, key: ReceiveKey) -> ReceiveQueue:
        receive_queue = self._receive_queues.get(key)
        if receive_queue is None:
            receive_queue = self._receive_queues[key] = ReceiveQueue(key)
            group.receive_queues.add(receive_queue)
        return receive_queue

    def _deliver_to_next(
        self,
        receive_queue: ReceiveQueue,
        group: ReceivingGroup,
        name: ReceiverName,
        messages: ReceivedMessages,
    ) -> None:
        """Deliver messages of a cancelled receiver to the next one of its name, or release them."""
        left = messages if group.is_fifo else receive_queue.deliver(name, messages)
        self._granting.release(group, left.receipts)

    def _queue_grown(self, topic: str) -> None:
        self._acquirer.queue_grown(topic)

    def refuse_in_child(self, reason: str) -> None:
        """Refuse calls in a forked child; see `Forkable.refuse_in_child`."""
        self._is_closed, self._refused_in_child = True, reason

    def _check_open(self) -> None:
        if self._is_closed:
            raise closed(self._refused_in_child, "the connection to the cluster")

    def _clean(self) -> None:
        self.delete_unused()
        self._cleaning = asyncio.get_running_loop().call_later(CLEANING_SECONDS, self._clean)

    def delete_unused(self) -> None:
        """Delete batches, tails, receive queues and groups that were not used for a while."""
        unused_before = asyncio.get_running_loop().time() - UNUSED_SECONDS
        self._kept.drop_older(unused_before)
        self._tail_reader.drop_unused(unused_before)
        for key, receive_queue in list(self._receive_queues.items()):
            if not (receive_queue.is_idle and receive_queue.was_idle):
                receive_queue.was_idle = receive_queue.is_idle
            else:
                del self._receive_queues[key]
                self._groups[key.group].receive_queues.discard(receive_queue)
        for group in list(self._groups.values()):
            if group.receive_queues:
                keep_topics(group, self._tail_reader.topics)
            elif not group.joining_receivers:
                del self._groups[group.name]


def _expire(receive_queue: ReceiveQueue, waiting: WaitingReceiver) -> None:
    """End the wait of a receiver. If no acquire call was made for it yet, wait for the first such
    call, at most GRACE_SECONDS.
    """
    receive_queue.expire(waiting)
    if waiting in receive_queue.waiting:
        asyncio.get_running_loop().call_later(GRACE_SECONDS, receive_queue.end_wait, waiting)


def keep_topics(group: ReceivingGroup, topics: Collection[str]) -> None:
    """Delete a group's state of all other topics. Lite topics are created and deleted often."""
    group.joined.intersection_update(topics)
    group.refusals_logged = {each for each in group.refusals_logged if each[0].topic in topics}
    for known in (group.acquired_ends, group.min_candidates):
        for queue in [each for each in known if each.topic not in topics]:
            del known[queue]


def _check_visible_after(visible_after_ms: int, least: int) -> None:
    if not least <= visible_after_ms <= VISIBLE_AFTER_MS_MAX:
        raise InvalidArgument(
            reason=f"{visible_after_ms} ms are not between {least} ms and 12 hours"
        )
