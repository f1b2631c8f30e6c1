"""Reports of many clients while the offset service is slow or unreachable."""

import asyncio
from collections.abc import Iterable
from typing import Any, cast

from gateway.wire_client import producer_settings
from rockoon.errors import OffsetServiceUnavailable
from rockoon.net.connection import Connection
from rockoon.receiving.received import ReceiptHandle
from rockoon_core.message_queue import MessageQueue
from rockoon_gateway.calls import GatewayCall
from rockoon_gateway.clients.presence import Presence
from rockoon_gateway.clients.reports import CLIENTS_PER_CALL_MAX, TICK_SECONDS, Reports
from rockoon_gateway.lite.subscribing import SharedSubscriptions
from rockoon_gateway.lite.subscriptions import LiteSubscriptions
from rockoon_proto.apache.rocketmq.v2.service_pb2 import NotifyClientTerminationRequest
from rockoon_proto.v1.in_flight_pb2 import (
    ProducerReport,
    ReportClientsReply,
    ReportClientsRequest,
)
from support.eventually import eventually

GROUP = "readers"


class NoLiteTopics(SharedSubscriptions):
    """No client reads lite topics."""

    def __init__(self) -> None:
        self.subscriptions = LiteSubscriptions()
        self._wanted = []

    def note(self, *_: object) -> None:
        pass


class Service:
    """Replies to reports; a report of a client in `slow` fails."""

    def __init__(self, lease_ms: int = 60_000) -> None:
        self.lease_ms = lease_ms
        self.service_id = "one"
        self.slow: set[str] = set()
        self.is_away = False
        self.reported: set[str] = set()
        self.delivered: list[int] = []
        self.producers: list[ProducerReport] = []

    def in_flight_service(self) -> Any:
        return self

    ReportClients = None

    async def call(self, _: object, request: ReportClientsRequest, **__: object) -> Any:
        names = {each.name.client_id for each in request.clients}
        if self.is_away or names & self.slow:
            raise OffsetServiceUnavailable
        self.reported |= names
        self.delivered += request.delivered
        self.producers += request.producers
        return ReportClientsReply(lease_ms=self.lease_ms, service_id=self.service_id)


def hear(presence: Presence, clients: Iterable[str]) -> None:
    for each in clients:
        presence.record_call(GatewayCall(each, "JAVA", "5", "peer", None, None), GROUP)


async def test_a_report_that_fails_holds_up_no_clients_of_later_ones() -> None:
    service, presence = Service(), Presence(120.0)
    reports = Reports(cast(Connection, service), "gateway", presence, NoLiteTopics())
    names = [f"client-{number}" for number in range(3 * CLIENTS_PER_CALL_MAX)]
    hear(presence, names)
    service.slow = {names[0]}
    for _ in range(2):
        await reports.report()
    assert service.reported >= set(names[CLIENTS_PER_CALL_MAX:])
    service.slow = set()
    await reports.report()
    assert service.reported == set(names)


async def test_clients_that_were_heard_longer_ago_than_a_lease_are_not_kept() -> None:
    service, presence = Service(lease_ms=0), Presence(120.0)
    reports = Reports(cast(Connection, service), "gateway", presence, NoLiteTopics())
    hear(presence, ["first"])
    await reports.report()
    service.is_away = True
    hear(presence, ["gone"])
    await reports.report()
    assert presence.heard == {}


async def test_delivered_messages_are_reported_soon_and_again_after_a_failure() -> None:
    service, presence = Service(), Presence(120.0)
    reports = Reports(cast(Connection, service), "gateway", presence, NoLiteTopics())
    service.is_away = True
    queue = MessageQueue("orders", "broker-a", 0)
    reports.delivered([ReceiptHandle(queue, 7, offset) for offset in range(3)])
    await reports.report()
    assert service.delivered == []
    service.is_away = False
    reports.delivered([ReceiptHandle(queue, 8, 3)])
    # Earlier than the next regular report.
    async with asyncio.timeout(TICK_SECONDS / 2), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(reports.run(), name="reports")
        await eventually(lambda: service.delivered)
        running.cancel()
    assert service.delivered == [7, 8]
    await reports.report()
    assert service.delivered == [7, 8]


async def test_producers_are_reported_with_their_topics_and_when_they_close() -> None:
    service, presence = Service(), Presence(120.0)
    reports = Reports(cast(Connection, service), "gateway", presence, NoLiteTopics())
    call = GatewayCall("sender", "JAVA", "5.2", "ipv4:10.0.0.1:7", None, None)
    presence.record_settings(call, producer_settings("orders", "payments"))
    service.is_away = True
    await reports.report()
    assert service.producers == []
    service.is_away = False
    await reports.report()
    (told,) = service.producers
    assert (told.client_id, list(told.topics), told.goodbye) == (
        "sender",
        ["orders", "payments"],
        False,
    )
    assert (told.details.address, told.details.version) == ("ipv4:10.0.0.1:7", "5.2")
    assert told.details.client_type == "producer"
    # Not again until a sixth of the lease has passed.
    presence.record_call(call)
    await reports.report()
    assert len(service.producers) == 1
    await presence.terminate(NotifyClientTerminationRequest(), call)
    await reports.report()
    assert [each.goodbye for each in service.producers] == [False, True]
    assert presence.heard == {}
    assert service.reported == set()


async def test_a_restarted_offset_service_hears_of_all_producers_again() -> None:
    service, presence = Service(), Presence(120.0)
    reports = Reports(cast(Connection, service), "gateway", presence, NoLiteTopics())
    call = GatewayCall("sender", "JAVA", "5.2", "peer", None, None)
    presence.record_settings(call, producer_settings("orders"))
    await reports.report()
    service.service_id = "two"
    hear(presence, ["reader"])
    await reports.report()
    await reports.report()
    assert [each.client_id for each in service.producers] == ["sender", "sender"]
