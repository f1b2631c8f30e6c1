"""Client reports on the wire: checks and conversion of requests and replies."""

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

from rockoon_core.errors import InvalidArgument, RockoonError
from rockoon_core.repeated_lines import limited
from rockoon_core.signature import CLUSTER_KEY_ID
from rockoon_format.names import lite_topic_fault
from rockoon_offset.in_flight.clients import (
    Answer,
    Gateway,
    KnownClient,
    LiteChange,
    LiteSet,
    ReportedClient,
)
from rockoon_offset.in_flight.known_receivers import Holding
from rockoon_offset.in_flight.producers import KnownProducer, ProducerName
from rockoon_offset.in_flight.receivers import Heard
from rockoon_offset.in_flight.window import ClientName
from rockoon_offset.request_checks import bounded_names, check_group, check_topic, require
from rockoon_proto.v1 import in_flight_pb2 as pb
from rockoon_runtime.access.callers import current_caller

log = limited(logging.getLogger(__name__))

CLIENTS_PER_CALL_MAX = 1024
CHANGES_PER_CALL_MAX = 64
LITE_TOPICS_MAX = 10_000
DETAILS_BYTES_MAX = 16 << 10
PRODUCER_TOPICS_MAX = 32
# Versions grow from the time of the service's start, epoch milliseconds, by 1 with each change.
VERSION_AHEAD_MAX = 86_400_000

Entry = TypeVar("Entry")
Result = TypeVar("Result")


def key_of(stated: str) -> str:
    """Return a client's access key: `stated` if a gateway reports it, else the caller's own."""
    caller = current_caller()
    return stated if caller is None or caller.key_id == CLUSTER_KEY_ID else caller.key_id


def reported(
    request: pb.ReportClientsRequest, now_ms: int
) -> tuple[Gateway, list[ReportedClient], list[LiteChange | None]]:
    """Convert a gateway's report of its clients from the wire.

    Clients choose their names, so one invalid entry must not fail the whole report: an invalid
    client is skipped, and an invalid change becomes None.

    Raises:
        InvalidArgument: the report is too long, or names no gateway.
    """
    require(gateway=request.gateway, gateway_id=request.gateway_id)
    if len(request.clients) > CLIENTS_PER_CALL_MAX:
        raise InvalidArgument(reason=f"more than {CLIENTS_PER_CALL_MAX} clients in one call")
    if len(request.lite_changes) > CHANGES_PER_CALL_MAX:
        raise InvalidArgument(reason=f"more than {CHANGES_PER_CALL_MAX} changes in one call")
    reports = [_or_none(_report, each, now_ms) for each in request.clients]
    changes = [_or_none(_change, each, now_ms) for each in request.lite_changes]
    gateway = Gateway(request.gateway, request.gateway_id)
    return gateway, [each for each in reports if each is not None], changes


def reported_producers(request: pb.ReportClientsRequest, now_ms: int) -> list[KnownProducer]:
    """Convert a report's producers, without invalid ones. Raises InvalidArgument if too many."""
    if len(request.producers) > CLIENTS_PER_CALL_MAX:
        raise InvalidArgument(reason=f"more than {CLIENTS_PER_CALL_MAX} producers in one call")

    def read(report: pb.ProducerReport, now_ms: int) -> KnownProducer:
        require(client_id=report.client_id)
        bounded_names(key_id=report.key_id)
        if report.heard_ms_ago < 0:
            raise InvalidArgument(reason="heard_ms_ago must be 0 or more")
        if len(report.topics) > PRODUCER_TOPICS_MAX:
            raise InvalidArgument(reason=f"more than {PRODUCER_TOPICS_MAX} topics of a producer")
        for topic in report.topics:
            check_topic(topic)
        return KnownProducer(
            ProducerName(report.client_id, key_of(report.key_id)),
            _copied(report.details),
            request.gateway,
            now_ms - report.heard_ms_ago,
            tuple(report.topics),
            report.goodbye,
        )

    found = (_or_none(read, each, now_ms) for each in request.producers)
    return [each for each in found if each is not None]


def _copied(details: pb.ClientDetails) -> pb.ClientDetails:
    """Return a copy: the original would keep the whole request in memory. Empty if too large."""
    if details.ByteSize() > DETAILS_BYTES_MAX:
        return pb.ClientDetails()
    return pb.ClientDetails.FromString(details.SerializeToString())


def _or_none(read: Callable[[Entry, int], Result], entry: Entry, now_ms: int) -> Result | None:
    try:
        return read(entry, now_ms)
    except RockoonError as fault:
        log.warning("ignored an invalid entry of a gateway's report: %s", fault)
        return None


def name_of(name: pb.ClientName) -> ClientName:
    check_group(name.group)
    require(client_id=name.client_id)
    bounded_names(key_id=name.key_id)
    return ClientName(name.group, name.client_id, key_of(name.key_id))


def _report(report: pb.ClientReport, now_ms: int) -> ReportedClient:
    if report.heard_ms_ago < 0 or report.lite_version < 0:
        raise InvalidArgument(reason="heard_ms_ago and lite_version must be 0 or more")
    heard = Heard(name_of(report.name), now_ms - report.heard_ms_ago, report.goodbye)
    return ReportedClient(heard, _copied(report.details), report.lite_version)


def _change(change: pb.LiteChange, now_ms: int) -> LiteChange:
    subscription = change.subscription
    check_topic(subscription.parent)
    _check_lite_topics(subscription.lite_topics)
    _check_lite_topics(change.claimed)
    if not 0 <= subscription.version <= now_ms + VERSION_AHEAD_MAX:
        raise InvalidArgument(reason=f"version {subscription.version} is out of range")
    wanted = LiteSet(
        name_of(subscription.name),
        subscription.parent,
        tuple(dict.fromkeys(subscription.lite_topics)),
        subscription.version,
        subscription.client_version,
    )
    return LiteChange(wanted, change.is_known, change.is_exclusive, frozenset(change.claimed))


def _check_lite_topics(lite_topics: Iterable[str]) -> None:
    for number, each in enumerate(lite_topics):
        if number >= LITE_TOPICS_MAX:
            raise InvalidArgument(reason=f"more than {LITE_TOPICS_MAX} lite topics of a client")
        if fault := lite_topic_fault(each):
            raise InvalidArgument(reason=fault)


def answer_to_wire(answer: Answer, lease_ms: int) -> pb.ReportClientsReply:
    return pb.ReportClientsReply(
        lease_ms=lease_ms,
        service_id=answer.service_id,
        lite=map(_lite_to_wire, answer.lite.values()),
        lite_to=answer.lite_to,
        lite_versions=answer.lite_versions,
        lite_wanted=map(_name_to_wire, answer.lite_wanted),
    )


def _name_to_wire(name: ClientName) -> pb.ClientName:
    return pb.ClientName(group=name.group, client_id=name.client_id, key_id=name.key_id)


def _lite_to_wire(of: LiteSet) -> pb.LiteSubscription:
    return pb.LiteSubscription(
        name=_name_to_wire(of.client),
        parent=of.parent,
        lite_topics=of.lite_topics,
        version=of.version,
        client_version=of.client_version,
        lost=of.lost,
    )


def client_to_wire(client: KnownClient, now_ms: int) -> pb.Client:
    lite = client.lite
    return pb.Client(
        client_id=client.name.client_id,
        key_id=client.name.key_id,
        details=client.details,
        gateway=client.gateway,
        heard_ms_ago=max(now_ms - client.heard_at_ms, 0),
        lite_parent=lite.parent if lite is not None else "",
        lite_topics=len(lite.lite_topics) if lite is not None else 0,
    )


def producer_to_wire(producer: KnownProducer, topic: str, now_ms: int) -> pb.Producer:
    """Convert a producer to the wire.

    Args:
        topic: the only topic in the result, because the caller may not see the other ones; empty
            for all topics.
    """
    return pb.Producer(
        client_id=producer.name.client_id,
        key_id=producer.name.key_id,
        details=producer.details,
        gateway=producer.gateway,
        heard_ms_ago=max(now_ms - producer.heard_at_ms, 0),
        topics=[topic] if topic else producer.topics,
    )


def holding_to_wire(holding: Holding) -> pb.Holding:
    return pb.Holding(
        receiver=holding.receiver,
        key_id=holding.key_id,
        messages=holding.messages,
        queues=len(holding.queues),
        attempt_max=holding.attempt_max,
        next_visible_at_ms=holding.next_visible_at_ms,
    )
