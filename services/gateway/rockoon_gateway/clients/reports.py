"""Reports to the offset service: the clients that this gateway has heard.

    calls, streams ──▶ Presence.heard ──once a second──▶ ReportClients ──▶ leases of their messages
    goodbyes, changes of lite topics ───────at once────▶               ◀── changes at other gateways

The offset service extends the messages that reported clients hold. So a gateway keeps no list of
receipts, and a client may call any gateway. Each client is reported every sixth part of the lease,
and only while it is heard. Silence at one gateway proves nothing: the client may call another one.
"""

import asyncio
import logging
import secrets
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from rockoon.errors import OffsetServiceUnavailable, RockoonError
from rockoon.net.connection import Connection
from rockoon.receiving.received import ReceiptHandle
from rockoon_core.clock import wait_at_most
from rockoon_core.repeated_lines import limited
from rockoon_gateway.clients.presence import GatewayClient, Presence
from rockoon_gateway.codes import enum_name
from rockoon_gateway.lite.subscribing import SharedSubscriptions
from rockoon_gateway.names import cluster_name
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import (
    SQL,
    ClientType,
    FilterExpression,
    Language,
)
from rockoon_proto.v1.in_flight_pb2 import (
    ClientDetails,
    ClientName,
    ClientReport,
    ProducerReport,
    ReportClientsReply,
    ReportClientsRequest,
)
from rockoon_proto.v1.offset_pb2 import TopicSubscription

log = limited(logging.getLogger(__name__))

TICK_SECONDS = 1.0
# Reports of a client in one lease.
REPORTS_OF_LEASE = 6
LEASE_SECONDS_DEFAULT = 60.0
CALL_SECONDS_MAX = 5.0
# Queued while the offset service is unreachable; later ones wait for the end of their lease.
GOODBYES_MAX = 100_000
# Interval of reports of deliveries. If a gateway is killed between a delivery and its report, the
# messages are delivered again after a lease; each report costs the offset service a call.
DELIVERED_SECONDS = 0.05
DELIVERED_PER_CALL_MAX = 4096
# Limits of the wire.
CLIENTS_PER_CALL_MAX = 1024
SUBSCRIPTIONS_MAX = 32
# Of one report: a change that conflicts with another gateway's is repeated.
LITE_CALLS_MAX = 4
TEXT_CHARACTERS_MAX = 255
SQL_MARK = "SQL92:"


class Goodbye(NamedTuple):
    """Report that a client leaves a group: it closes. `at`: the loop's time of its message.

    The group of a producer is empty.
    """

    client: GatewayClient
    group: str
    at: float


class Reports:
    """Reports the clients of this gateway to the offset service, which extends the leases of
    their messages.

    Args:
        name: name of the gateway, for operators.
    """

    def __init__(
        self, cluster: Connection, name: str, presence: Presence, lite: SharedSubscriptions
    ) -> None:
        self._cluster = cluster
        self._name = name
        self._process = secrets.token_hex(8)
        self._presence = presence
        self._lite = lite
        self._lease_seconds = LEASE_SECONDS_DEFAULT
        # The loop's time of each client's last report, by client and group; "" for producers.
        self._reported: dict[tuple[GatewayClient, str], float] = {}
        self._goodbyes: list[Goodbye] = []
        # Delivered acquisitions that were not reported yet.
        self._delivered: dict[int, None] = {}
        self._is_report_scheduled = False
        # The loop's time at the start of the last report.
        self._began = 0.0
        self._service_id = ""
        self._lite_since = 0
        self._report_due = asyncio.Event()
        self._next: asyncio.Future[None] | None = None
        self._reporting = asyncio.Lock()
        presence.on_goodbye.append(self._client_left)
        lite.subscriptions.on_change = self._report_due.set

    async def run(self) -> None:
        """Report clients to the offset service until cancelled."""
        while True:
            await wait_at_most(TICK_SECONDS, self._report_due.wait())
            self._report_due.clear()
            await self.report()

    @property
    def lease_seconds(self) -> float:
        """Seconds for which a silent client keeps its messages."""
        return self._lease_seconds

    def delivered(self, receipts: Iterable[ReceiptHandle]) -> None:
        """Schedule a report that a client has received messages; reports extend their leases."""
        self._delivered.update(dict.fromkeys(each.acquisition for each in receipts))
        if not self._is_report_scheduled:
            self._is_report_scheduled = True
            asyncio.get_running_loop().call_at(
                self._began + DELIVERED_SECONDS, self._report_due.set
            )

    async def soon(self) -> None:
        """Wait until the next report was sent and answered, at most `CALL_SECONDS_MAX`."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        self._report_due.set()
        await wait_at_most(CALL_SECONDS_MAX, asyncio.shield(self._next))

    async def report(self) -> None:
        """Report the clients that called and are due; after a failure, with the next call."""
        async with self._reporting:
            waiting, self._next = self._next, None
            try:
                await self._report()
            except RockoonError as failure:
                log.warning("clients of this gateway were not reported: %s; retrying", failure)
            except Exception:
                # The root of a task.
                log.exception("unexpected error while reporting clients (bug)")
            finally:
                if waiting is not None and not waiting.done():
                    waiting.set_result(None)

    async def _report(self) -> None:
        self._presence.check_signs_of_life()
        now = self._began = asyncio.get_running_loop().time()
        pause = self._lease_seconds / REPORTS_OF_LEASE
        self._reported = {each: at for each, at in self._reported.items() if now - at < pause}
        # Older goodbyes are obsolete: their messages have become visible.
        self._goodbyes = [each for each in self._goodbyes if now - each.at < self._lease_seconds]
        late = [each for each, at in self._presence.heard.items() if now - at > self._lease_seconds]
        for each in late:
            del self._presence.heard[each]
        due = [each for each in self._presence.heard if each not in self._reported]
        # Later deliveries schedule another report.
        self._is_report_scheduled = False
        delivered = list(self._delivered)
        lite_calls = 0
        while True:
            numbers = delivered[:DELIVERED_PER_CALL_MAX]
            goodbyes = self._goodbyes[:CLIENTS_PER_CALL_MAX]
            some = due[: CLIENTS_PER_CALL_MAX - len(goodbyes)]
            if self._lite.has_changes and lite_calls < LITE_CALLS_MAX:
                lite_calls += 1
            elif not (some or goodbyes or numbers) and not (self._lite.follows and not lite_calls):
                return
            await self._send(some, goodbyes, numbers)
            del due[: len(some)], self._goodbyes[: len(goodbyes)], delivered[: len(numbers)]
            lite_calls = max(lite_calls, 1)

    async def _send(
        self,
        some: list[tuple[GatewayClient, str]],
        goodbyes: list[Goodbye],
        delivered: Sequence[int],
    ) -> None:
        now = asyncio.get_running_loop().time()
        # Clients may have said goodbye since.
        heard = {each: at for each in some if (at := self._presence.heard.get(each)) is not None}
        request = ReportClientsRequest(
            delivered=delivered,
            gateway=self._name,
            gateway_id=self._process,
            lite_since=self._lite_since,
            # Goodbyes first: a client may have returned under its name.
            clients=[
                *(
                    self._entry(client, group, now - at, True)
                    for client, group, at in goodbyes
                    if group
                ),
                *(self._entry(*each, now - at) for each, at in heard.items() if each[1]),
            ],
            producers=[
                *(
                    _producer(client, now - at, goodbye=True)
                    for client, group, at in goodbyes
                    if not group
                ),
                *(
                    _producer(client, now - at)
                    for (client, group), at in heard.items()
                    if not group
                ),
            ],
        )
        changes = self._lite.add_changes(request)
        try:
            reply: ReportClientsReply = await self._cluster.call(
                self._cluster.in_flight_service().ReportClients,
                request,
                unavailable=OffsetServiceUnavailable,
                timeout_seconds=CALL_SECONDS_MAX,
            )
        except RockoonError:
            # Retry with other clients first: this failure may be about these.
            for each in heard:
                if (last := self._presence.heard.pop(each, None)) is not None:
                    self._presence.heard[each] = last
            raise
        for number in delivered:
            self._delivered.pop(number, None)
        for each, at in heard.items():
            self._reported[each] = now
            if self._presence.heard.get(each) == at:
                del self._presence.heard[each]
        self._lease_seconds = reply.lease_ms / 1000
        self._lite_since = reply.lite_to
        self._lite.apply_reply(changes, reply, now)
        if self._service_id not in ("", reply.service_id):
            self._report_all(now)
        self._service_id = reply.service_id

    def _report_all(self, now: float) -> None:
        """Mark all clients with messages as due: a restarted offset service knows none."""
        self._reported.clear()
        for client in self._presence:
            if now - client.seen < self._lease_seconds:
                producer = ("",) if client.client_type == ClientType.PRODUCER else ()
                for group in (*client.groups, *producer):
                    self._presence.heard.setdefault((client, group), client.seen)

    def _entry(
        self, client: GatewayClient, group: str, seconds_ago: float, goodbye: bool = False
    ) -> ClientReport:
        return ClientReport(
            name=ClientName(group=group, client_id=client.client_id, key_id=client.key_id),
            heard_ms_ago=max(round(1000 * seconds_ago), 0),
            goodbye=goodbye,
            details=details_of(client),
            lite_version=self._lite.version_of(client.client_id, group),
        )

    def _client_left(self, client: GatewayClient, groups: Collection[str]) -> None:
        now = asyncio.get_running_loop().time()
        if len(self._goodbyes) < GOODBYES_MAX:
            self._goodbyes += [Goodbye(client, group, now) for group in groups]
            if client.client_type == ClientType.PRODUCER:
                self._goodbyes.append(Goodbye(client, "", now))
        self._report_due.set()


def _producer(
    client: GatewayClient, seconds_ago: float, *, goodbye: bool = False
) -> ProducerReport:
    return ProducerReport(
        client_id=client.client_id,
        key_id=client.key_id,
        heard_ms_ago=max(round(1000 * seconds_ago), 0),
        goodbye=goodbye,
        details=details_of(client),
        topics=client.topics[:SUBSCRIPTIONS_MAX],
    )


def details_of(client: GatewayClient) -> ClientDetails:
    """Return details of a client, for consoles at other gateways."""
    settings = client.settings
    agent = settings.user_agent if settings is not None else None
    kind = ""
    if client.client_type != ClientType.CLIENT_TYPE_UNSPECIFIED:
        kind = enum_name(ClientType, client.client_type).lower()
    return ClientDetails(
        client_type=kind,
        language=enum_name(Language, agent.language) if agent is not None else client.language,
        version=client.version,
        address=client.peer,
        hostname=agent.hostname if agent is not None else "",
        subscriptions=_subscriptions(client),
    )


def _subscriptions(client: GatewayClient) -> Iterator[TopicSubscription]:
    entries = client.settings.subscription.subscriptions if client.settings is not None else ()
    for entry in entries[:SUBSCRIPTIONS_MAX]:
        text = expression_text(entry.expression)[:TEXT_CHARACTERS_MAX]
        yield TopicSubscription(topic=cluster_name(entry.topic), expression=text)


def expression_text(expression: FilterExpression) -> str:
    """Convert the protocol's filter to Rockoon's notation."""
    if expression.type == SQL:
        return f"{SQL_MARK} {expression.expression}"
    return expression.expression
