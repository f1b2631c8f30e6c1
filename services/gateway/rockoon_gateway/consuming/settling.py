"""AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue: what ends a delivery.

A handle that is no good, for whatever reason, is INVALID_RECEIPT_HANDLE and nothing else: push
consumers repeat what failed in another way, for ever.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from rockoon.receiving.received import OFFSET_MAX, ReceiptHandle
from rockoon_core.clock import Clock, wall_clock_ms
from rockoon_format.names import lite_topic_of, retry_topic
from rockoon_gateway.calls import ClientCall
from rockoon_gateway.codes import OK, Refusal, common_status
from rockoon_gateway.consuming.giving_back import Visibility
from rockoon_gateway.consuming.handles import (
    HANDLE_CHARACTERS_MAX,
    Handle,
    refused,
    settled,
)
from rockoon_gateway.consuming.receive_rules import invisible_ms, require_reader
from rockoon_gateway.names import checked_group, checked_topic
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code, Status

ENTRIES_MAX = 1024
# Of an entry of an answer that is put together as bytes.
SHORT_BYTES_MAX = 1024


class Settles(Visibility, Protocol):
    """What of the receiving engine is needed."""

    async def acknowledge(
        self, group: str, receipts: Sequence[ReceiptHandle], *, receiver: str = ""
    ) -> list[bool]:
        """See `ReceivingEngine`."""
        ...

    async def dead_letter(
        self,
        group: str,
        receipts: Sequence[ReceiptHandle],
        *,
        reason: str = "",
        attempts: int = 1,
        receiver: str = "",
    ) -> list[bool]:
        """See `ReceivingEngine`."""
        ...


class Settling:
    """Answers the three calls.

    Args:
        engine: shared by all clients, whose acknowledgements it gathers.
        clock: says which handles' time is over.
    """

    def __init__(self, engine: Settles, clock: Clock = wall_clock_ms) -> None:
        self._engine = engine
        self._clock = clock

    def _receipt(self, handle: str, group: str, topic: str, now_ms: int) -> ReceiptHandle:
        receipt = Handle.parse(handle, now_ms).receipt
        stored = receipt.queue.topic
        lite = lite_topic_of(stored)
        if stored not in (topic, retry_topic(group)) and (lite is None or lite[0] != topic):
            # The caller's key was looked at for the topic that it names.
            raise refused(handle, f"is of another topic than {topic}")
        return receipt

    def _receipts(
        self, handles: Iterable[str], group: str, topic: str
    ) -> tuple[list[ReceiptHandle], list[Status]]:
        """What handles are, and of each whether it is one.

        Those of one delivery differ in the offset alone: of the others only that is looked at.
        """
        now_ms = self._clock()
        receipts: list[ReceiptHandle] = []
        results: list[Status] = []
        deliveries: dict[str, ReceiptHandle] = {}
        times: set[str] = set()
        for handle in handles:
            delivery, *rest = handle.rsplit("/", 2)
            known = deliveries.get(delivery)
            if (
                known is not None
                and rest[1] in times
                and rest[0].isdecimal()
                and len(handle) <= HANDLE_CHARACTERS_MAX
                and (offset := int(rest[0])) <= OFFSET_MAX
            ):
                receipts.append(ReceiptHandle(known.queue, known.acquisition, offset))
                results.append(OK)
                continue
            try:
                receipt = self._receipt(handle, group, topic, now_ms)
            except Refusal as refusal:
                results.append(refusal.status)
            else:
                deliveries[delivery] = receipt
                times.add(rest[1])
                receipts.append(receipt)
                results.append(OK)
        return receipts, results

    async def acknowledge(
        self, request: pb.AckMessageRequest, call: ClientCall
    ) -> pb.AckMessageResponse:
        """Each entry is taken or refused for itself, in their order."""
        group = checked_group(request.group, call.namespace)
        topic = checked_topic(request.topic, call.namespace)
        require_reader(call, group, topic)
        if not request.entries:
            # RocketMQ's proxy answers INTERNAL_SERVER_ERROR, which push consumers repeat for ever.
            raise Refusal(Code.BAD_REQUEST, "the request has no entry to acknowledge")
        if len(request.entries) > ENTRIES_MAX:
            raise Refusal(
                Code.BAD_REQUEST, f"{len(request.entries)} entries, more than {ENTRIES_MAX}"
            )
        handles = [entry.receipt_handle for entry in request.entries]
        receipts, results = self._receipts(handles, group, topic)
        taken = []
        if receipts:
            taken = await self._engine.acknowledge(group, receipts, receiver=call.client_id)
        if not all(taken):
            readable = [index for index, result in enumerate(results) if result is OK]
            for index, is_taken in zip(readable, taken, strict=True):
                if not is_taken:
                    results[index] = settled(handles[index]).status
        return answer_to(request, results)

    async def change_invisible(
        self, request: pb.ChangeInvisibleDurationRequest, call: ClientCall
    ) -> pb.ChangeInvisibleDurationResponse:
        """The answer's handle is the one that counts from now on."""
        group = checked_group(request.group, call.namespace)
        topic = checked_topic(request.topic, call.namespace)
        require_reader(call, group, topic)
        duration_ms = invisible_ms(request.invisible_duration, 0)
        receipt = self._receipt(request.receipt_handle, group, topic, self._clock())
        (changed,) = await self._engine.change_visibility(
            group, [receipt], duration_ms, counted=not request.suspend
        )
        if changed is None:
            raise settled(request.receipt_handle)
        handle = Handle(changed, self._clock() + duration_ms)
        return pb.ChangeInvisibleDurationResponse(status=OK, receipt_handle=handle.text())

    async def forward_to_dead_letters(
        self, request: pb.ForwardMessageToDeadLetterQueueRequest, call: ClientCall
    ) -> pb.ForwardMessageToDeadLetterQueueResponse:
        """The message goes to %DLQ%group."""
        group = checked_group(request.group, call.namespace)
        topic = checked_topic(request.topic, call.namespace)
        require_reader(call, group, topic)
        receipt = self._receipt(request.receipt_handle, group, topic, self._clock())
        reason = f"given up by its consumer after {request.delivery_attempt} deliveries"
        (is_taken,) = await self._engine.dead_letter(
            group,
            [receipt],
            reason=reason,
            attempts=request.delivery_attempt,
            receiver=call.client_id,
        )
        if not is_taken:
            raise settled(request.receipt_handle)
        return pb.ForwardMessageToDeadLetterQueueResponse(status=OK)


def answer_to(request: pb.AckMessageRequest, results: Sequence[Status]) -> pb.AckMessageResponse:
    """What AckMessage answers.

    It is put together as bytes and read: as an object for each entry it took longer than all else.

    Args:
        request: the client's.
        results: of its entries.
    """
    try:
        pieces = [b"\x0a", *_sized(common_status(results))]
        for entry, result in zip(request.entries, results, strict=True):
            message_id, handle = entry.message_id.encode(), entry.receipt_handle.encode()
            # Of the entry: three fields, each behind a byte.
            head = b"\x0a", _SIZES[len(message_id)], message_id
            size, status = _OK if result is OK else _sized(result)
            fields = (*head, b"\x12", _SIZES[len(handle)], handle, b"\x1a", size, status)
            pieces += b"\x12", _SIZES[sum(map(len, fields))], *fields
    except IndexError:
        return answer_by_entries(request, results)
    return pb.AckMessageResponse.FromString(b"".join(pieces))


def answer_by_entries(
    request: pb.AckMessageRequest, results: Sequence[Status]
) -> pb.AckMessageResponse:
    """The same, of any size."""
    return pb.AckMessageResponse(
        status=common_status(results),
        entries=[
            pb.AckMessageResultEntry(
                message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=result
            )
            for entry, result in zip(request.entries, results, strict=True)
        ],
    )


def _sized(status: Status) -> tuple[bytes, bytes]:
    """Its size on the wire, and its bytes; raises IndexError."""
    raw = status.SerializeToString()
    return _SIZES[len(raw)], raw


_SIZES = [bytes((n,) if n < 128 else (n & 127 | 128, n >> 7)) for n in range(SHORT_BYTES_MAX)]
_OK = _sized(OK)
