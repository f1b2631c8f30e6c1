"""Lite subscriptions shared by gateways: a client subscribes at one and receives at another.

The offset service has the state of each client, with a version. A gateway sends changes with the
version that they are based on. If another gateway was faster, the gateway receives the newer state,
and applies its changes to that.
"""

import logging
from collections.abc import Collection, Iterable
from typing import NamedTuple

from rockoon import Cluster
from rockoon.errors import RockoonError
from rockoon_gateway.clients.presence import GatewayClient, Presence
from rockoon_gateway.codes import OK, Refusal
from rockoon_gateway.lite.lite_topics import LiteTopics
from rockoon_gateway.lite.subscriptions import LiteSubscription, LiteSubscriptions
from rockoon_gateway.topics import TopicRoutes
from rockoon_proto.apache.rocketmq.v2.service_pb2 import (
    NotifyUnsubscribeLiteCommand,
    TelemetryCommand,
)
from rockoon_proto.v1.in_flight_pb2 import (
    ClientName,
    LiteChange,
    ReportClientsReply,
    ReportClientsRequest,
)
from rockoon_proto.v1.in_flight_pb2 import LiteSubscription as LiteState

log = logging.getLogger(__name__)

# Limits of one call on the wire.
CHANGES_MAX = 64
CHANGES_BYTES_MAX = 2 << 20


class SentChange(NamedTuple):
    """A change of a client's lite subscription that was sent, and the number of changes in it."""

    subscription: LiteSubscription
    changes: int


class SharedSubscriptions:
    """Exchanges clients' lite subscriptions with other gateways, through the offset service.

    Args:
        cluster: the connection.
        topics, lite_topics: find routes of lite topics that other gateways have created.
        presence: the gateway's clients.
        subscriptions: of this gateway's clients.
    """

    def __init__(
        self,
        cluster: Cluster,
        topics: TopicRoutes,
        lite_topics: LiteTopics,
        presence: Presence,
        subscriptions: LiteSubscriptions,
    ) -> None:
        self._cluster = cluster
        self._topics = topics
        self._lite_topics = lite_topics
        self._presence = presence
        self.subscriptions = subscriptions
        # Subscriptions that the offset service has asked for.
        self._wanted: list[LiteSubscription] = []

    @property
    def has_changes(self) -> bool:
        """True if there are lite subscriptions to send to the offset service."""
        return bool(self._wanted) or any(each.changes for each in self.subscriptions.clients)

    @property
    def follows(self) -> bool:
        """True if this gateway has clients: it needs the changes that other gateways made."""
        return bool(self.subscriptions.clients)

    def version_of(self, client_id: str, group: str) -> int:
        """Return the version of a client's lite subscription at this gateway; 0 without one."""
        found = self.subscriptions.find(client_id, group)
        return 0 if found is None else found.version

    def add_changes(self, request: ReportClientsRequest) -> list[SentChange]:
        """Add the clients' changes of lite subscriptions to a report to the offset service, up to
        the limits of a call.
        """
        sent: list[SentChange] = []
        wanted, self._wanted = self._wanted, []
        changed = [each for each in self.subscriptions.clients if each.changes]
        size = 0
        for each in dict.fromkeys((*wanted, *changed)):
            if size >= CHANGES_BYTES_MAX or len(sent) == CHANGES_MAX:
                if not each.changes:
                    self._wanted.append(each)
                continue
            change = self._change(each)
            size += change.ByteSize()
            request.lite_changes.append(change)
            sent.append(SentChange(each, each.changes.count))
        return sent

    def _change(self, of: LiteSubscription) -> LiteChange:
        return LiteChange(
            subscription=LiteState(
                name=self._name(of),
                parent=of.parent,
                lite_topics=of.lite_topics,
                version=of.version,
                client_version=of.client_version,
            ),
            is_known=not of.changes,
            is_exclusive=of.is_exclusive,
            claimed=of.changes.claimed if of.is_exclusive else (),
        )

    def _name(self, of: LiteSubscription) -> ClientName:
        client = self._presence.get(of.client_id)
        key_id = client.key_id if client is not None else ""
        return ClientName(group=of.group, client_id=of.client_id, key_id=key_id)

    def apply_reply(
        self, sent: Iterable[SentChange], reply: ReportClientsReply, sent_at: float
    ) -> None:
        """Apply the offset service's reply to a report; `sent_at`: the loop's time of the call."""
        for each, version in zip(sent, reply.lite_versions, strict=True):
            if version:
                each.subscription.changes_stored(each.changes, version)
        for state in reply.lite:
            client = self._client(state.name)
            # A client that said goodbye after the report was sent starts without lite topics.
            if client is not None and client.began < sent_at:
                self._apply_state(client, state)
        for name in reply.lite_wanted:
            found = self.subscriptions.find(name.client_id, name.group)
            if found is not None and self._client(name) is not None:
                self._wanted.append(found)

    def _client(self, name: ClientName) -> GatewayClient | None:
        client = self._presence.get(name.client_id)
        return client if client is not None and client.key_id == name.key_id else None

    def _apply_state(self, client: GatewayClient, state: LiteState) -> None:
        mine = self.subscriptions.of(client.client_id, state.name.group, state.parent)
        if state.version <= mine.version and not mine.changes:
            return
        lost = [each for each in state.lost if each in mine.lite_topics]
        new = mine.apply_state(state.lite_topics, state.version, state.client_version)
        notify_lost(client, lost)
        if new:
            self._cluster.tasks.create_task(
                self._provide(mine, new), name=f"lite topics of {client.client_id}"
            )

    async def _provide(self, mine: LiteSubscription, lite_topics: Collection[str]) -> None:
        """Cache the routes of lite topics that another gateway has created."""
        try:
            parent = await self._topics.route(mine.parent)
            await self._lite_topics.provide(parent, lite_topics, to_send=False)
        except (RockoonError, Refusal) as failure:
            log.warning(
                "%d lite topics of %s are not read until the client names them again: %s",
                len(lite_topics),
                mine.client_id,
                failure,
            )
        mine.wake()


def notify_lost(client: GatewayClient | None, lite_topics: Iterable[str]) -> None:
    """Notify a client of lite topics that another client of its exclusive group reads now."""
    for outbox in client.outboxes if client is not None else ():
        for lite_topic in lite_topics:
            command = NotifyUnsubscribeLiteCommand(lite_topic=lite_topic)
            outbox.put(TelemetryCommand(status=OK, notify_unsubscribe_lite_command=command))
