"""AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue: what ends a delivery.

A handle that is no good, for whatever reason, is INVALID_RECEIPT_HANDLE and nothing else: push
consumers repeat what failed in another way, for ever.
"""

from collections.abc import Sequence
from typing import Protocol

from rockoon.receiving.received import ReceiptHandle
from rockoon_core.clock import Clock, wall_clock_ms
from rockoon_format.names import lite_topic_of, retry_topic
from rockoon_gateway.calls import ClientCall
from rockoon_gateway.codes import OK, Refusal, common_status
from rockoon_gateway.consuming.handles import Handle, refused, settled
from rockoon_gateway.consuming.receive_rules import bounded_ms, require_reader
from rockoon_gateway.consuming.renewals import Renewer, Visibility
from rockoon_gateway.names import checked_group, checked_topic
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code, Status

ENTRIES_MAX = 1024


class Settles(Visibility, Protocol):
    """What of the receiving engine is needed."""

    async def acknowledge(self, group: str, receipts: Sequence[ReceiptHandle]) -> list[bool]:
        """See `ReceivingEngine`."""
        ...

    async def dead_letter(
        self, group: str, receipts: Sequence[ReceiptHandle], *, reason: str = ""
    ) -> list[bool]:
        """See `ReceivingEngine`."""
        ...


class Settling:
    """Answers the three calls.

    Args:
        engine: shared by all clients, whose acknowledgements it gathers.
        renewer: is told what needs no renewal any more.
        clock: says which handles' time is over.
    """

    def __init__(self, engine: Settles, renewer: Renewer, clock: Clock = wall_clock_ms) -> None:
        self._engine = engine
        self._renewer = renewer
        self._clock = clock

    def _receipt(self, handle: str, group: str, topic: str) -> ReceiptHandle:
        receipt = Handle.parse(handle, self._clock()).receipt
        stored = receipt.queue.topic
        lite = lite_topic_of(stored)
        if stored not in (topic, retry_topic(group)) and (lite is None or lite[0] != topic):
            # The caller's key was looked at for the topic that it names.
            raise refused(handle, f"is of another topic than {topic}")
        return receipt

    async def acknowledge(
        self, request: pb.AckMessageRequest, call: ClientCall
    ) -> pb.AckMessageResponse:
        """Each entry is taken or refused for itself, in their order."""
        group, topic = checked_group(request.group), checked_topic(request.topic)
        require_reader(call, group, topic)
        if not request.entries:
            # As RocketMQ's proxy answers.
            raise Refusal(Code.INTERNAL_SERVER_ERROR, "nothing to acknowledge")
        if len(request.entries) > ENTRIES_MAX:
            raise Refusal(
                Code.BAD_REQUEST, f"{len(request.entries)} entries, more than {ENTRIES_MAX}"
            )
        results = await self._acknowledged(group, topic, request)
        return pb.AckMessageResponse(
            status=common_status(results),
            entries=[
                pb.AckMessageResultEntry(
                    message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=result
                )
                for entry, result in zip(request.entries, results, strict=True)
            ],
        )

    async def _acknowledged(
        self, group: str, topic: str, request: pb.AckMessageRequest
    ) -> list[Status]:
        results: list[Status] = []
        receipts: list[ReceiptHandle] = []
        for entry in request.entries:
            try:
                receipts.append(self._receipt(entry.receipt_handle, group, topic))
                results.append(OK)
            except Refusal as refusal:
                results.append(refusal.status)
        readable = [index for index, result in enumerate(results) if result is OK]
        taken = await self._engine.acknowledge(group, receipts) if receipts else []
        for index, is_taken in zip(readable, taken, strict=True):
            if not is_taken:
                results[index] = settled(request.entries[index].receipt_handle).status
        self._renewer.forget(group, receipts)
        return results

    async def change_invisible(
        self, request: pb.ChangeInvisibleDurationRequest, call: ClientCall
    ) -> pb.ChangeInvisibleDurationResponse:
        """The answer's handle is the one that counts from now on."""
        group, topic = checked_group(request.group), checked_topic(request.topic)
        require_reader(call, group, topic)
        duration_ms = bounded_ms(request.invisible_duration.ToMilliseconds(), 0)
        receipt = self._receipt(request.receipt_handle, group, topic)
        (changed,) = await self._engine.change_visibility(
            group, [receipt], duration_ms, counted=not request.suspend
        )
        self._renewer.forget(group, [receipt])
        if changed is None:
            raise settled(request.receipt_handle)
        handle = Handle(changed, self._clock() + duration_ms)
        return pb.ChangeInvisibleDurationResponse(status=OK, receipt_handle=handle.text())

    async def forward_to_dead_letters(
        self, request: pb.ForwardMessageToDeadLetterQueueRequest, call: ClientCall
    ) -> pb.ForwardMessageToDeadLetterQueueResponse:
        """The message goes to %DLQ%group."""
        group, topic = checked_group(request.group), checked_topic(request.topic)
        require_reader(call, group, topic)
        receipt = self._receipt(request.receipt_handle, group, topic)
        reason = f"given up by its consumer after {request.delivery_attempt} deliveries"
        (is_taken,) = await self._engine.dead_letter(group, [receipt], reason=reason)
        self._renewer.forget(group, [receipt])
        if not is_taken:
            raise settled(request.receipt_handle)
        return pb.ForwardMessageToDeadLetterQueueResponse(status=OK)
