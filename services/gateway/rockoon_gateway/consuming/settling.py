"""AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue: the end of a delivery.

Each invalid handle is refused with INVALID_RECEIPT_HANDLE and no other code: push consumers retry
after other codes forever.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Protocol

from rockoon.errors import RockoonError
from rockoon.receiving.received import OFFSET_MAX, ReceiptHandle
from rockoon_core.clock import Clock, wall_clock_ms
from rockoon_format.names import lite_topic_of, retry_topic
from rockoon_gateway.calls import GatewayCall
from rockoon_gateway.codes import OK, Refusal, common_status
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

log = logging.getLogger(__name__)

# Pause between two tries while the offset service is unreachable.
PAUSE_SECONDS = 1.0


class Visibility(Protocol):
    """The part of `ReceivingEngine` that `ReturnedMessages` uses."""

    async def change_visibility(
        self,
        group: str,
        receipts: Sequence[ReceiptHandle],
        visible_after_ms: int,
        *,
        counted: bool = True,
        extend: bool = False,
    ) -> list[ReceiptHandle | None]:
        """Change when messages become visible; see `ReceivingEngine`."""


class ReturnedMessages:
    """Makes messages visible again that were acquired for a client and not delivered.

    They become visible immediately, and the delivery does not count as an attempt. If the offset
    service is unreachable, they are returned later: otherwise reports of a living client would
    extend them for hours.
    """

    def __init__(self, engine: Visibility) -> None:
        self._engine = engine
        self._queued: list[tuple[str, ReceiptHandle]] = []
        self._flush_due = asyncio.Event()
        self._flushing = asyncio.Lock()

    def return_later(self, group: str, receipts: Iterable[ReceiptHandle]) -> None:
        """Queue messages of a group; the next call to the offset service returns them."""
        self._queued += [(group, receipt) for receipt in receipts]
        self._flush_due.set()

    async def run(self) -> None:
        """Make queued messages visible again, by calls to the offset service, until cancelled."""
        while True:
            await self._flush_due.wait()
            self._flush_due.clear()
            await self.flush()
            if self._queued:
                await asyncio.sleep(PAUSE_SECONDS)
                self._flush_due.set()

    async def flush(self) -> None:
        """Return all messages that `return_later` has queued; failed ones stay queued."""
        # `run` may be returning the same messages now.
        async with self._flushing:
            groups: dict[str, list[ReceiptHandle]] = defaultdict(list)
            for group, receipt in self._queued:
                groups[group].append(receipt)
            self._queued = []
            async with asyncio.TaskGroup() as tasks:
                for group, receipts in groups.items():
                    tasks.create_task(self._return(group, receipts), name=f"give back, {group}")

    async def _return(self, group: str, receipts: Sequence[ReceiptHandle]) -> None:
        try:
            await self._engine.change_visibility(group, receipts, 0, counted=False)
        except RockoonError as failure:
            count = len(receipts)
            log.info("%d messages of %s were not returned yet: %s", count, group, failure)
            if failure.retriable:
                self._queued += [(group, receipt) for receipt in receipts]


ENTRIES_MAX = 1024
# Limit of an entry in a reply that is serialized by hand.
SHORT_BYTES_MAX = 1024


class Settles(Visibility, Protocol):
    """The part of `ReceivingEngine` that `Settling` uses."""

    async def acknowledge(
        self, group: str, receipts: Sequence[ReceiptHandle], *, receiver: str = ""
    ) -> list[bool]:
        """Acknowledge messages; see `ReceivingEngine`."""

    async def dead_letter(
        self,
        group: str,
        receipts: Sequence[ReceiptHandle],
        *,
        reason: str = "",
        attempts: int = 1,
        receiver: str = "",
    ) -> list[bool]:
        """Move messages to the dead letter topic; see `ReceivingEngine`."""


class Settling:
    """Serves the calls AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue.

    Args:
        engine: shared by all clients; it sends their acknowledgements together.
        clock: for the validity of handles.
    """

    def __init__(self, engine: Settles, clock: Clock = wall_clock_ms) -> None:
        self._engine = engine
        self._clock = clock

    def _receipt(self, handle: str, group: str, topic: str, now_ms: int) -> ReceiptHandle:
        receipt = Handle.parse(handle, now_ms).receipt
        stored = receipt.queue.topic
        lite = lite_topic_of(stored)
        if stored not in (topic, retry_topic(group)) and (lite is None or lite[0] != topic):
            # The caller's permission was checked for the topic that it names.
            raise refused(handle, f"is of another topic than {topic}")
        return receipt

    def _receipts(
        self, handles: Iterable[str], group: str, topic: str
    ) -> tuple[list[ReceiptHandle], list[Status]]:
        """Parse handles; returns the valid ones, and a status for each.

        Handles of one delivery differ only in the offset: only that is parsed after the first.
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
        self, request: pb.AckMessageRequest, call: GatewayCall
    ) -> pb.AckMessageResponse:
        """Acknowledge or refuse each message of a request; results are in its order."""
        group = checked_group(request.group, call.namespace)
        topic = checked_topic(request.topic, call.namespace)
        require_reader(call, group, topic)
        if not request.entries:
            # RocketMQ's proxy replies INTERNAL_SERVER_ERROR; push consumers then retry forever.
            raise Refusal(Code.BAD_REQUEST, "the request has no entry to acknowledge")
        if len(request.entries) > ENTRIES_MAX:
            raise Refusal(
                Code.BAD_REQUEST, f"{len(request.entries)} entries, more than {ENTRIES_MAX}"
            )
        handles = [entry.receipt_handle for entry in request.entries]
        receipts, results = self._receipts(handles, group, topic)
        accepted = []
        if receipts:
            accepted = await self._engine.acknowledge(group, receipts, receiver=call.client_id)
        if not all(accepted):
            readable = [index for index, result in enumerate(results) if result is OK]
            for index, is_accepted in zip(readable, accepted, strict=True):
                if not is_accepted:
                    results[index] = settled(handles[index]).status
        return answer_to(request, results)

    async def change_invisible(
        self, request: pb.ChangeInvisibleDurationRequest, call: GatewayCall
    ) -> pb.ChangeInvisibleDurationResponse:
        """Change a message's invisible time; from then on only the reply's handle is valid."""
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
        self, request: pb.ForwardMessageToDeadLetterQueueRequest, call: GatewayCall
    ) -> pb.ForwardMessageToDeadLetterQueueResponse:
        """Move a message to %DLQ%group."""
        group = checked_group(request.group, call.namespace)
        topic = checked_topic(request.topic, call.namespace)
        require_reader(call, group, topic)
        receipt = self._receipt(request.receipt_handle, group, topic, self._clock())
        reason = f"given up by its consumer after {request.delivery_attempt} deliveries"
        (is_accepted,) = await self._engine.dead_letter(
            group,
            [receipt],
            reason=reason,
            attempts=request.delivery_attempt,
            receiver=call.client_id,
        )
        if not is_accepted:
            raise settled(request.receipt_handle)
        return pb.ForwardMessageToDeadLetterQueueResponse(status=OK)


def answer_to(request: pb.AckMessageRequest, results: Sequence[Status]) -> pb.AckMessageResponse:
    """Build the reply of an AckMessage call from the results of its entries.

    It is serialized by hand and parsed: building an object per entry was the slowest part.
    """
    try:
        pieces = [b"\x0a", *_sized(common_status(results))]
        for entry, result in zip(request.entries, results, strict=True):
            message_id, handle = entry.message_id.encode(), entry.receipt_handle.encode()
            # An entry has three fields, each after a tag byte.
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
    """Build the reply like `answer_to`, also if a field is too long for `answer_to`."""
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
    """Return a status's size on the wire, and its bytes; raises IndexError."""
    raw = status.SerializeToString()
    return _SIZES[len(raw)], raw


_SIZES = [bytes((n,) if n < 128 else (n & 127 | 128, n >> 7)) for n in range(SHORT_BYTES_MAX)]
_OK = _sized(OK)
