"""gRPC servicer of InFlightService: converts requests, calls `Receivers`, converts results."""
# ruff: noqa: ARG002 - gRPC calls every method with a request and a context

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

from rockoon_core.errors import InvalidArgument, InvalidOffset, RockoonError
from rockoon_core.message_queue import (
    ACQUIRES_PER_CALL_MAX,
    REPORTED_FILTER_BYTES_MAX,
    queue_from_wire,
    queue_to_wire,
)
from rockoon_core.start_position import policy_from_wire
from rockoon_offset.in_flight import client_wire
from rockoon_offset.in_flight.clients import KnownClients
from rockoon_offset.in_flight.deliveries import INVISIBLE_MS_MAX, FifoCandidates
from rockoon_offset.in_flight.filters import NO_PROGRAM, ReceiverProgram, TopicFilter
from rockoon_offset.in_flight.known_receivers import holdings
from rockoon_offset.in_flight.producers import KnownProducers
from rockoon_offset.in_flight.receivers import (
    CANDIDATES_MAX,
    AcquireEntry,
    Delivered,
    Granted,
    GrantedMessages,
    LostCall,
    Receivers,
    ReceiverShare,
    ReportedQueue,
    Settlement,
    VisibilityEntry,
)
from rockoon_offset.members.membership import ClientSdk
from rockoon_offset.progress.ledger import OFFSET_MAX
from rockoon_offset.request_checks import (
    bounded,
    bounded_names,
    check_bytes,
    check_group,
    check_reply_bytes,
    check_topic,
    require,
)
from rockoon_proto.v1 import in_flight_pb2 as pb
from rockoon_proto.v1.in_flight_pb2_grpc import InFlightServiceServicer

MESSAGES_MAX = 1024
SHARES_MAX = 64
PRODUCERS_LISTED_MAX = 10_000
INVISIBLE_MS_MIN = 1
# Stored for each acquisition. A queue may have an acquisition for each message in flight.
REASON_BYTES_MAX = 256
# Size of a set of offsets that covers a whole window.
OFFSETS_BYTES_MAX = 128 << 10

P = ParamSpec("P")
T = TypeVar("T")


class InFlightService(InFlightServiceServicer):
    """gRPC servicer of InFlightService (in_flight.proto), for receivers and gateways."""

    def __init__(
        self, receivers: Receivers, clients: KnownClients, producers: KnownProducers
    ) -> None:
        self._receivers = receivers
        self._clients = clients
        self._producers = producers

    async def Acquire(self, request: pb.AcquireRequest, context: Any) -> pb.AcquireReply:
        if len(request.wanted) > ACQUIRES_PER_CALL_MAX:
            raise InvalidArgument(reason=f"more than {ACQUIRES_PER_CALL_MAX} entries in one call")
        bounded(request.lost)
        bounded_names(call_id=request.call_id)
        lost = [or_error(lost_call, each) for each in request.lost]
        peer = context.peer() if any(each.language for each in request.wanted) else ""
        entries = [or_error(acquire_entry, each, request.call_id, peer) for each in request.wanted]
        good = [each for each in entries if isinstance(each, AcquireEntry)]
        outcomes = iter(
            await self._receivers.acquire(
                good, request.route_revision, [each for each in lost if isinstance(each, LostCall)]
            )
        )
        return pb.AcquireReply(
            granted=[
                granted(next(outcomes) if isinstance(each, AcquireEntry) else Granted(error=each))
                for each in entries
            ],
            as_of_ms=self._receivers.now_ms(),
        )

    async def Acknowledge(
        self, request: pb.AcknowledgeRequest, context: Any
    ) -> pb.AcknowledgeReply:
        bounded(request.entries)
        entries = [or_error(acknowledged, each) for each in request.entries]
        reply = pb.AcknowledgeReply()
        for settlement in await settlements(entries, self._receivers.acknowledge):
            result = reply.results.add(refused=to_bytes(settlement.refused))
            if settlement.error is not None:
                result.error.CopyFrom(settlement.error.to_wire())
        return reply

    async def ChangeVisibility(
        self, request: pb.ChangeVisibilityRequest, context: Any
    ) -> pb.ChangeVisibilityReply:
        bounded(request.changes)
        changes = [or_error(visibility_entry, change) for change in request.changes]
        reply = pb.ChangeVisibilityReply()
        for settlement in await settlements(changes, self._receivers.change_visibility):
            result = reply.results.add(
                refused=to_bytes(settlement.refused),
                acquisition=settlement.number,
                visible_at_ms=settlement.visible_at_ms,
            )
            if settlement.error is not None:
                result.error.CopyFrom(settlement.error.to_wire())
        return reply

    async def ListInFlight(
        self, request: pb.ListInFlightRequest, context: Any
    ) -> pb.ListInFlightReply:
        check_group(request.group)
        now_ms = self._receivers.now_ms()
        reply = pb.ListInFlightReply(as_of_ms=now_ms)
        for queue, window in self._receivers.windows(request.group, request.topic):
            counts = window.counts(now_ms)
            reply.queues.add(
                queue=queue_to_wire(queue),
                settled_to=window.floor,
                acquired_to=window.acquired_to,
                settled_above=counts.settled_above,
                in_flight=counts.in_flight,
                visible_again=counts.visible_again,
                attempt_max=counts.attempt_max,
                next_visible_at_ms=counts.next_visible_at_ms,
            )
        await self._receivers.durable()
        return reply

    async def ReportClients(
        self, request: pb.ReportClientsRequest, context: Any
    ) -> pb.ReportClientsReply:
        now_ms = self._receivers.now_ms()
        gateway, heard, changes = client_wire.reported(request, now_ms)
        bounded(request.delivered)
        self._receivers.delivered(request.delivered)
        await self._receivers.heard(each.heard for each in heard)
        self._producers.report(client_wire.reported_producers(request, now_ms), now_ms)
        answer = self._clients.report(gateway, heard, changes, request.lite_since, now_ms)
        return client_wire.answer_to_wire(answer, self._receivers.lease_ms)

    async def ListClients(
        self, request: pb.ListClientsRequest, context: Any
    ) -> pb.ListClientsReply:
        check_group(request.group)
        now_ms = self._receivers.now_ms()
        windows = self._receivers.windows(request.group, "")
        clients = self._clients.of_group(request.group, now_ms)
        reply = pb.ListClientsReply(
            clients=(client_wire.client_to_wire(each, now_ms) for each in clients),
            holdings=map(client_wire.holding_to_wire, holdings(windows, now_ms)),
            as_of_ms=now_ms,
        )
        check_reply_bytes(reply.ByteSize(), "a smaller group")
        await self._receivers.wait_leadership_confirmed()
        return reply

    async def ListProducers(
        self, request: pb.ListProducersRequest, context: Any
    ) -> pb.ListProducersReply:
        if request.topic:
            check_topic(request.topic)
        now_ms = self._receivers.now_ms()
        found = self._producers.of_topic(request.topic, now_ms)
        reply = pb.ListProducersReply(
            producers=(
                client_wire.producer_to_wire(each, request.topic, now_ms)
                for each in found[:PRODUCERS_LISTED_MAX]
            ),
            producers_count=len(found),
        )
        check_reply_bytes(reply.ByteSize(), "a topic")
        await self._receivers.wait_leadership_confirmed()
        return reply


def or_error(read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | RockoonError:
    """Convert an entry of a call, or return its error: an invalid entry must not fail the call."""
    try:
        return read(*args, **kwargs)
    except RockoonError as reason:
        return reason


async def settlements(
    entries: Sequence[T | RockoonError],
    settle: Callable[[list[T]], Awaitable[Iterable[Settlement]]],
) -> list[Settlement]:
    """Settle a call's valid entries by one call of `settle`; return the result of each entry."""
    good = [each for each in entries if not isinstance(each, RockoonError)]
    outcomes = iter(await settle(good) if good else ())
    return [
        Settlement(0, error=each) if isinstance(each, RockoonError) else next(outcomes)
        for each in entries
    ]


def acquire_entry(wanted: pb.Wanted, call_id: str, peer: str) -> AcquireEntry:
    check_group(wanted.group)
    require(receiver=wanted.receiver)
    bounded(wanted.queues)
    bounded_names(attempt_id=wanted.attempt_id)
    check_between("messages_max", wanted.messages_max, 1, MESSAGES_MAX)
    check_between("message_group_max", wanted.message_group_max, 0, MESSAGES_MAX)
    check_between("visible_after_ms", wanted.visible_after_ms, INVISIBLE_MS_MIN, INVISIBLE_MS_MAX)
    check_between("held_ms_max", wanted.held_ms_max, 0, INVISIBLE_MS_MAX)
    bounded_names(key_id=wanted.key_id, language=wanted.language, version=wanted.version)
    bounded(wanted.filters)
    for each in wanted.filters:
        check_topic(each.topic)
        check_bytes("a filter", each.expression, REPORTED_FILTER_BYTES_MAX)
    return AcquireEntry(
        wanted.group,
        list(map(reported_queue, wanted.queues)),
        wanted.messages_max,
        wanted.visible_after_ms,
        wanted.attempt_id,
        policy_from_wire(wanted.policy),
        shares_of(wanted),
        wanted.receiver,
        wanted.held_ms_max,
        [TopicFilter(each.topic, each.expression) for each in wanted.filters],
        wanted.message_group_max,
        # Stored with each acquisition, and only needed if reports extend it.
        call_id if wanted.held_ms_max else "",
        ReceiverProgram(peer, ClientSdk(wanted.language, wanted.version))
        if wanted.language
        else NO_PROGRAM,
    )


def lost_call(lost: pb.LostCall) -> LostCall:
    require(call_id=lost.call_id)
    return LostCall(client_wire.name_of(lost.receiver), lost.call_id)


def shares_of(wanted: pb.Wanted) -> list[ReceiverShare]:
    if not wanted.shares:
        key_id = client_wire.key_of(wanted.key_id)
        return [ReceiverShare(wanted.receiver, key_id, wanted.messages_max)]
    if len(wanted.shares) > SHARES_MAX:
        raise InvalidArgument(reason=f"more than {SHARES_MAX} shares in one entry")
    for each in wanted.shares:
        require(receiver=each.receiver)
        bounded_names(key_id=each.key_id)
        check_between("messages_max", each.messages_max, 1, MESSAGES_MAX)
    return [
        ReceiverShare(each.receiver, client_wire.key_of(each.key_id), each.messages_max)
        for each in wanted.shares
    ]


def reported_queue(reach: pb.QueueReach) -> ReportedQueue:
    if len(reach.candidates) > CANDIDATES_MAX:
        raise InvalidArgument(reason=f"more than {CANDIDATES_MAX} candidates of a queue")
    for offset in (reach.min_offset, reach.end_offset, reach.candidates_from):
        check_offset(offset)
    candidates = FifoCandidates(reach.candidates_from, reach.candidates)
    queue = queue_from_wire(reach.queue)
    return ReportedQueue(
        queue, reach.min_offset, reach.end_offset, candidates, reach.create_revision
    )


def acknowledged(entry: pb.GroupDelivered) -> Delivered:
    bounded_names(receiver=entry.receiver)
    return delivered(entry.group, entry.delivered)._replace(receiver=entry.receiver)


def delivered(group: str, of: pb.Delivered) -> Delivered:
    check_group(group)
    check_offset(of.first_offset)
    if not 0 < len(of.offsets) <= OFFSETS_BYTES_MAX:
        raise InvalidArgument(
            reason=f"offsets has {len(of.offsets)} bytes, expected 1 to {OFFSETS_BYTES_MAX}"
        )
    messages = int.from_bytes(of.offsets, "little")
    return Delivered(group, queue_from_wire(of.queue), of.acquisition, of.first_offset, messages)


def visibility_entry(change: pb.VisibilityChange) -> VisibilityEntry:
    bounded_names(receiver=change.receiver, key_id=change.key_id)
    check_between("held_ms_max", change.held_ms_max, 0, INVISIBLE_MS_MAX)
    check_between("visible_after_ms", change.visible_after_ms, 0, INVISIBLE_MS_MAX)
    return VisibilityEntry(
        delivered(change.group, change.delivered),
        change.visible_after_ms,
        not change.uncounted,
        change.extend,
        change.reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore"),
        change.receiver,
        client_wire.key_of(change.key_id),
        change.held_ms_max,
    )


def granted(outcome: Granted) -> pb.Granted:
    if outcome.error is not None:
        return pb.Granted(error=outcome.error.to_wire())
    return pb.Granted(
        acquired=map(acquired, outcome.deliveries),
        next_visible_at_ms=outcome.next_visible_at_ms or 0,
        refused=[
            pb.QueueRefusal(queue=queue_to_wire(queue), error=error.to_wire())
            for queue, error in outcome.refused.items()
        ],
        wanted_candidates=[
            pb.WantedCandidates(queue=queue_to_wire(queue), from_offset=offset)
            for queue, offset in outcome.wanted.items()
        ],
        filter_conflict=outcome.filter_conflict,
    )


def acquired(delivery: GrantedMessages) -> pb.Acquired:
    of = delivery.acquired
    return pb.Acquired(
        queue=queue_to_wire(of.queue),
        acquisition=of.number,
        first_offset=of.first,
        offsets=to_bytes(of.messages),
        attempt=of.attempt,
        dead=delivery.is_dead,
        visible_at_ms=of.visible_at_ms,
        reason=of.reason if delivery.is_dead else "",
        share=delivery.share,
    )


def to_bytes(messages: int) -> bytes:
    """Convert a set of offsets to the wire; empty for an empty set."""
    return messages.to_bytes((messages.bit_length() + 7) // 8, "little")


def check_between(name: str, value: int, least: int, most: int) -> None:
    """Raise InvalidArgument if a number of a request is not within its bounds."""
    if not least <= value <= most:
        raise InvalidArgument(reason=f"{name} is {value}, expected {least} to {most}")


def check_offset(offset: int) -> None:
    """Raise InvalidOffset if an offset of a request is out of range."""
    if not 0 <= offset <= OFFSET_MAX:
        raise InvalidOffset(offset=offset)
