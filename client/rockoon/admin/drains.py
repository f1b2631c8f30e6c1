"""Drains of brokers: `cluster.admin.drains`.

A drained broker accepts no new messages of producers, and its messages are read as usual, so that
it can be removed. Changes need `admin` on `cluster`, reports need `read`.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rockoon.admin import reads
from rockoon.admin.dead_letters import DeadLetters
from rockoon.admin.live_settings import SettingsAdmin
from rockoon.admin.logs import LogAdmin
from rockoon.bounds import refuses_invalid_text
from rockoon.errors import (
    BrokerNotFound,
    BrokerUnavailable,
    InvalidArgument,
    LogNotFound,
    RockoonError,
)
from rockoon_format.names import RETRY_TOPIC_PREFIX, is_dlq_topic, is_retry_topic
from rockoon_proto.v1.broker_pb2 import DescribeDrainReply, DescribeDrainRequest
from rockoon_proto.v1.nameserver_pb2 import BROKER, RemoveBrokerReply, RemoveBrokerRequest

if TYPE_CHECKING:
    from rockoon.net.connection import Connection

SETTING = "drained"
CALL_SECONDS_MAX = 10.0
POLL_SECONDS = 0.5
ROUTES_SECONDS_MAX = 5.0
# A broker that has just started may not have received its live settings.
SETTING_SECONDS_MAX = 5.0
TOPICS_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class DrainReport:
    """The remaining messages of a broker that is drained.

    Attributes:
        closed: whether it refuses messages of producers; a few seconds after the beginning.
        settled: whether all numbers are of one moment.
        unread_messages: messages that groups have not read, sum over all groups.
        unread: (group, queue, messages), those with most messages first, at most 8.
        unknown_because: why unread messages are unknown; empty if they are known.
        delayed: delayed messages that are not due.
        transactions: half messages of open transactions.
        dead_letters: group → its dead letters on the broker that were not replayed.
        without_readers: topic → messages that no group will read.
        compacted: topic → messages, in topics that keep the newest message of each key.
    """

    broker: str
    drained: bool
    closed: bool
    settled: bool
    unread_messages: int
    unread: Sequence[tuple[str, str, int]]
    unknown_because: str
    delayed: int
    transactions: int
    dead_letters: Mapping[str, int]
    without_readers: Mapping[str, int]
    compacted: Mapping[str, int]

    @property
    def is_finished(self) -> bool:
        """Whether readers, delays and transactions need nothing on the broker any more."""
        return (
            self.closed
            and self.settled
            and not self.unread_messages
            and not self.unknown_because
            and not self.delayed
            and not self.transactions
        )

    @property
    def is_removable(self) -> bool:
        """Whether removing the broker loses no message."""
        kept = (self.dead_letters, self.without_readers, self.compacted)
        return self.is_finished and not any(kept)


@refuses_invalid_text
class DrainAdmin:
    """Drains of brokers: `cluster.admin.drains`."""

    def __init__(self, cluster: "Connection") -> None:
        self._cluster = cluster
        self._settings = SettingsAdmin(cluster)

    async def drain(self, broker: str, *, force: bool = False) -> DrainReport:
        """Drain a broker; returns its remaining messages.

        The drain is stored in etcd, and survives restarts. Draining a drained broker changes
        nothing.

        Args:
            broker: its name; for a log with copies the log's name.
            force: drain it although sends to some topics will fail.

        Raises:
            BrokerNotFound: the broker is not live.
            InvalidArgument: no other broker accepts messages, or a topic has queues on no other.
        """
        if not force:
            await self._check(broker)
        await self._settings.set("broker", SETTING, "true", broker)
        await self._wait_routes(broker, drained=True)
        return await self.report(broker)

    async def undrain(self, broker: str) -> DrainReport:
        """Let a drained broker accept messages again. Raises BrokerNotFound: the broker is not
        live; InvalidArgument: it is drained by its file, environment or options."""
        found = await self._settings.describe("broker", broker)
        if any(each.name == SETTING and each.live for one in found for each in one.settings):
            found = await self._settings.unset("broker", SETTING, broker)
        for process in found:
            for each in process.settings:
                if each.name == SETTING and each.value != "false":
                    raise InvalidArgument(
                        reason=f"{process.process} is drained by {each.origin}: remove {SETTING} "
                        "there, and restart it"
                    )
        await self._wait_routes(broker, drained=False)
        return await self.report(broker)

    async def report(self, broker: str) -> DrainReport:
        """Return the remaining messages of a broker. Raises BrokerNotFound, BrokerUnavailable."""
        if self._cluster.routes.broker(broker) is None:
            raise BrokerNotFound(broker=broker)
        reply: DescribeDrainReply = await self._cluster.call_broker(
            broker, "DescribeDrain", DescribeDrainRequest(), CALL_SECONDS_MAX
        )
        read: set[str] = set()
        for group in reads.group_summaries(await reads.ask_groups(self._cluster)):
            read.update(group.topics)
            read.add(RETRY_TOPIC_PREFIX + group.group.config.name)
        compacted, without_readers = {}, {}
        dead_letters = await DeadLetters(self._cluster).unreplayed(broker)
        for each in reply.topics:
            if each.compacted:
                compacted[each.topic] = each.messages
            elif each.topic not in read and not is_dlq_topic(each.topic):
                without_readers[each.topic] = each.messages
        return DrainReport(
            broker,
            reply.drained,
            reply.closed,
            reply.settled,
            reply.unread_messages,
            [(each.reader, each.queue, each.messages) for each in reply.unread],
            reply.unknown_because,
            reply.delayed,
            reply.transactions,
            dead_letters,
            without_readers,
            compacted,
        )

    async def wait(self, broker: str, seconds: float | None = None) -> DrainReport:
        """Wait until a drained broker is finished, and return the remaining messages.

        The wait continues while the broker, or a service that knows progress, is restarted.

        Args:
            seconds: maximum wait; None: no limit.

        Raises:
            BrokerNotFound: the broker has been removed.
            InvalidArgument: the broker is not drained.
            TimeoutError: it is not finished in time.
        """
        loop = asyncio.get_running_loop()
        undrained_since: float | None = None
        async with asyncio.timeout(seconds):
            while True:
                # After an error the broker may have started again.
                previous, undrained_since = undrained_since, None
                try:
                    report = await self.report(broker)
                    if report.is_finished:
                        return report
                    if not report.drained:
                        now = loop.time()
                        undrained_since = now if previous is None else previous
                        if now > undrained_since + SETTING_SECONDS_MAX:
                            raise InvalidArgument(
                                reason=f"broker {broker!r} is not drained any more"
                            )
                except BrokerNotFound:
                    await self._refuse_removed(broker)
                except RockoonError as failure:
                    if not failure.retriable:
                        raise
                await asyncio.sleep(POLL_SECONDS)

    async def _refuse_removed(self, broker: str) -> None:
        """Raise BrokerNotFound if a broker that is not in the routes has been removed. The state of
        a stopped broker's log stays in etcd."""
        try:
            await LogAdmin(self._cluster).describe(broker)
        except LogNotFound:
            raise BrokerNotFound(
                f"broker {broker!r} was removed from the cluster before it was empty",
                broker=broker,
            ) from None
        except RockoonError as failure:
            if not failure.retriable:
                raise

    async def remove(self, broker: str, *, force: bool = False) -> RemoveBrokerReply:
        """Remove a broker from the routes.

        If it is live, only its queues are removed: consumers leave them, and producers do not wait
        for them. Then its processes must be stopped and the call repeated, which removes the state
        of its log and its live settings. `force`: remove it although messages may be lost. Raises
        InvalidArgument: the broker is not drained or not empty, or a topic has queues on no other
        broker.
        """
        if not force:
            await self._check_empty(broker)
        reply: RemoveBrokerReply = await self._cluster.call_nameserver(
            "RemoveBroker", RemoveBrokerRequest(broker=broker)
        )
        return reply

    async def _wait_routes(self, broker: str, *, drained: bool) -> None:
        """Wait shortly until the routes of this connection have a change, as other clients do."""
        changed = self._cluster.routes_changed
        with suppress(TimeoutError):
            async with asyncio.timeout(ROUTES_SECONDS_MAX):
                while (broker in self._cluster.routes.drained) != drained:
                    await changed.wait(changed.count)

    async def _check_empty(self, broker: str) -> None:
        """Raise InvalidArgument if the removal of a broker may lose messages."""
        try:
            report = await self.report(broker)
        except (BrokerNotFound, BrokerUnavailable):
            routes = await reads.list_topics(self._cluster, include_system=True)
            if any(queue.broker == broker for route in routes for queue in route.queues):
                raise InvalidArgument(
                    reason=f"broker {broker!r} does not answer and has queues, which may have "
                    "unread messages: start and drain it, or remove it with --force"
                ) from None
            return
        if not report.is_removable:
            raise InvalidArgument(
                reason=f"broker {broker!r} is not drained and empty: `rockoon broker drain "
                f"{broker}` shows the remaining messages"
            )

    async def _check(self, broker: str) -> None:
        """Raise InvalidArgument if producers have no other broker for all topics."""
        routes = self._cluster.routes
        others = {
            node.name
            for node in routes.nodes
            if node.kind == BROKER and node.name != broker and not node.drained
        }
        if not others:
            raise InvalidArgument(
                reason=f"no other broker accepts messages: producers could not send while "
                f"{broker!r} is drained"
            )
        on_brokers: dict[str, set[str]] = defaultdict(set)
        for route in await reads.list_topics(self._cluster, include_system=True):
            of_group = is_retry_topic(route.name) or is_dlq_topic(route.name)
            if route.writable and not of_group:
                on_brokers[route.name] = {queue.broker for queue in route.queues}
        alone = sorted(
            topic
            for topic, brokers in on_brokers.items()
            if broker in brokers and not brokers & others
        )
        if alone:
            named = ", ".join(alone[:TOPICS_NAMED_MAX])
            if len(alone) > TOPICS_NAMED_MAX:
                named += f" and {len(alone) - TOPICS_NAMED_MAX} more topics"
            raise InvalidArgument(
                reason=f"{named}: these topics have queues on no other broker that accepts "
                "messages. Add queues with `rockoon topic update TOPIC --add BROKER=N`, or drain "
                "with --force"
            )
