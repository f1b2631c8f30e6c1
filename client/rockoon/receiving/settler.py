"""Settler: sends acknowledgements and changes of visibility in few calls.

Requests that arrive during a call share the next call. So a thousand receivers that acknowledge one
message each need few calls and syncs of the offset service.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from rockoon.errors import (
    Closed,
    NotEnoughReplicas,
    NotLeader,
    NotReady,
    OffsetServiceUnavailable,
    RockoonError,
    TimedOut,
    from_wire,
)
from rockoon.net.connection import Connection
from rockoon.net.retried import retried
from rockoon.receiving.receive_queue import ReceiverName
from rockoon.receiving.received import ReceiptHandle
from rockoon_core.message_queue import QUEUES_PER_CALL_MAX, MessageQueue, queue_to_wire
from rockoon_core.repeated_lines import limited
from rockoon_proto.v1.in_flight_pb2 import (
    Acknowledged,
    AcknowledgeRequest,
    ChangedVisibility,
    ChangeVisibilityRequest,
    Delivered,
    GroupDelivered,
    VisibilityChange,
)


def offsets_of(first_offset: int, mask: bytes) -> list[int]:
    """Return the offsets whose bits are set, ascending.

    Args:
        first_offset: offset of the least significant bit of the first byte.
        mask: one bit per offset.
    """
    bits = int.from_bytes(mask, "little")
    count = bits.bit_length()
    if bits == (1 << count) - 1:
        return list(range(first_offset, first_offset + count))
    found = []
    while bits:
        lowest = bits & -bits
        found.append(first_offset + lowest.bit_length() - 1)
        bits ^= lowest
    return found


def mask_of(offsets: Iterable[int], first_offset: int) -> bytes:
    """Return the mask of some offsets, which are all `first_offset` or larger."""
    found = sorted(set(offsets))
    if not found:
        return b""
    start, stop = found[0] - first_offset, found[-1] + 1 - first_offset
    size = (stop + 7) // 8
    if stop - start == len(found):
        return ((1 << stop) - (1 << start)).to_bytes(size, "little")
    mask = bytearray(size)
    for offset in found:
        bit = offset - first_offset
        mask[bit >> 3] |= 1 << (bit & 7)
    return bytes(mask)


log = limited(logging.getLogger(__name__))

# Offsets of one entry, whose mask has at most one kilobyte. Handles come from clients and may have
# forged offsets: two distant offsets must not produce a mask of all offsets between them.
BLOCK_OFFSETS = 8 << 10
# Bytes of the bit masks of one call; a call has at least one entry.
MASKS_BYTES_MAX = 1 << 20
# Errors of a call while another process becomes the offset service. Both calls may be repeated; see
# `in_flight.proto`.
LEADER_CHANGE_ERRORS = (OffsetServiceUnavailable, NotReady, NotLeader, NotEnoughReplicas, TimedOut)


class GroupAcquisition(NamedTuple):
    """An acquisition of a group, in one block of offsets.

    Attributes:
        block: number of the block of `BLOCK_OFFSETS` offsets of the queue.
        receiver: acknowledges the messages; empty: their holder.
    """

    group: str
    queue: MessageQueue
    acquisition: int
    block: int
    receiver: str = ""


class SettleRequest(NamedTuple):
    """A change of the visibility of acquired messages; see `Settler.change`."""

    acquired: GroupAcquisition
    visible_after_ms: int
    uncounted: bool
    extend: bool
    reason: str
    to: ReceiverName | None
    held_ms_max: int


Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result", Acknowledged, ChangedVisibility)


@dataclass(frozen=True, slots=True)
class SettleResult(Generic[Result]):
    """Results for the offsets of one key."""

    first_offset: int
    refused: int
    """Bit mask of refused offsets, from `first_offset`."""
    result: Result

    def is_refused(self, offset: int) -> bool:
        return bool(self.refused >> (offset - self.first_offset) & 1)


class CallBatcher(Generic[Key, Result]):
    """Collects offsets by key for the next call.

    Args:
        name: name of the task, for log lines.
        send: makes a call for some keys and their offsets, and returns a result for each key.
    """

    def __init__(
        self,
        cluster: Connection,
        name: str,
        send: Callable[[Mapping[Key, Sequence[int]]], Awaitable[Sequence[Result]]],
    ) -> None:
        self._cluster = cluster
        self._name = name
        self._send: Callable[[Mapping[Key, Sequence[int]]], Awaitable[Sequence[Result]]] = send
        self._pending: dict[Key, list[int]] = {}
        self._next: asyncio.Future[dict[Key, SettleResult[Result]]] | None = None
        self._task: asyncio.Task[None] | None = None

    async def settle(
        self, offsets: Mapping[Key, Sequence[int]]
    ) -> Mapping[Key, SettleResult[Result]]:
        """Send offsets with the next call and return the results. Cancelling does not prevent the
        call. Raises RockoonError: the offsets were not stored, or the reply was lost."""
        for key, some in offsets.items():
            self._pending.setdefault(key, []).extend(some)
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        if self._task is None:
            self._task = self._cluster.tasks.create_task(self._run(), name=self._name)
        return await asyncio.shield(self._next)

    async def _run(self) -> None:
        future = self._next
        try:
            while self._pending:
                pending, future = self._pending, self._next
                self._pending, self._next = {}, None
                assert future is not None
                try:
                    found = await self._send_all(pending)
                except Exception as error:
                    if not isinstance(error, RockoonError):
                        log.exception("%s: unexpected error (bug)", self._name)
                        error = RockoonError(f"{self._name} failed (bug): {error!r}")
                    future.set_exception(error)
                    # Marks the error as retrieved: all callers may have been cancelled.
                    future.exception()
                else:
                    future.set_result(found)
        finally:
            self._task = None
            for each in (future, self._next):
                _fail_closed(each)

    async def _send_all(self, pending: Mapping[Key, list[int]]) -> dict[Key, SettleResult[Result]]:
        found: dict[Key, SettleResult[Result]] = {}
        for some in split_calls(pending):
            results = await retried(
                partial(self._send, some), self._cluster.retry_seconds, LEADER_CHANGE_ERRORS
            )
            for (key, offsets), result in zip(some.items(), results, strict=True):
                refused = int.from_bytes(result.refused, "little")
                found[key] = SettleResult(min(offsets), refused, result)
        return found

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        # A task that was cancelled before its first step does not close it.
        _fail_closed(self._next)


def _fail_closed(future: asyncio.Future[Any] | None) -> None:
    """Fail the callers that wait with `Closed`; a cancelled future would cancel them."""
    if future is not None and not future.done():
        future.set_exception(Closed(what="the connection to the cluster"))
        # Marks the error as retrieved: all callers may have been cancelled.
        future.exception()


def split_calls(pending: Mapping[Key, Sequence[int]]) -> Iterator[dict[Key, Sequence[int]]]:
    """Split pending offsets into the entries of single calls."""
    some: dict[Key, Sequence[int]] = {}
    size = 0
    for key, offsets in pending.items():
        mask_bytes = (max(offsets) - min(offsets)) // 8 + 1
        if some and (len(some) == QUEUES_PER_CALL_MAX or size + mask_bytes > MASKS_BYTES_MAX):
            yield some
            some, size = {}, 0
        some[key] = offsets
        size += mask_bytes
    if some:
        yield some


class Settler:
    """Acknowledges received messages and changes their visibility, for all receivers of a
    connection.
    """

    def __init__(self, cluster: Connection) -> None:
        self._cluster = cluster
        self._acknowledgements: CallBatcher[GroupAcquisition, Acknowledged] = CallBatcher(
            cluster, "rockoon acknowledgements", self._acknowledge
        )
        self._changes: CallBatcher[SettleRequest, ChangedVisibility] = CallBatcher(
            cluster, "rockoon visibility", self._change
        )

    async def acknowledge(
        self, group: str, receipts: Sequence[ReceiptHandle], receiver: str = ""
    ) -> list[bool]:
        """See `ReceivingEngine.acknowledge`. `receiver`: acknowledges the messages; empty: their
        holder."""
        if not receipts:
            return []
        offsets = by_acquisition(receipts)
        keys = {each: GroupAcquisition(group, *each, receiver) for each in offsets}
        found = await self._acknowledgements.settle({keys[each]: offsets[each] for each in offsets})
        answers = {each: found[key] for each, key in keys.items()}
        for settled in answers.values():
            if settled.result.HasField("error"):
                raise from_wire(settled.result.error)
        if not any(settled.refused for settled in answers.values()):
            return [True] * len(receipts)
        return [
            not answers[queue, acquisition, offset // BLOCK_OFFSETS].is_refused(offset)
            for queue, acquisition, offset in receipts
        ]

    async def change(
        self,
        group: str,
        receipts: Sequence[ReceiptHandle],
        visible_after_ms: int,
        *,
        uncounted: bool = False,
        extend: bool = False,
        reason: str = "",
        to: ReceiverName | None = None,
        held_ms_max: int = 0,
    ) -> list[tuple[ReceiptHandle, int] | None]:
        """See `ReceivingEngine.changed`.

        Args:
            to: receiver to which the messages are transferred, in the same delivery.
            held_ms_max: see `Wanted` in `in_flight.proto`.
        """
        if not receipts:
            return []
        offsets = by_acquisition(receipts)
        keys = {
            each: SettleRequest(
                GroupAcquisition(group, *each),
                visible_after_ms,
                uncounted,
                extend,
                reason,
                to,
                held_ms_max,
            )
            for each in offsets
        }
        found = await self._changes.settle({keys[each]: offsets[each] for each in offsets})
        changed: list[tuple[ReceiptHandle, int] | None] = []
        for queue, acquisition, offset in receipts:
            settled = found[keys[queue, acquisition, offset // BLOCK_OFFSETS]]
            result = settled.result
            if result.HasField("error"):
                raise from_wire(result.error)
            if settled.is_refused(offset) or not result.acquisition:
                changed.append(None)
            else:
                receipt = ReceiptHandle(queue, result.acquisition, offset)
                changed.append((receipt, result.visible_at_ms))
        return changed

    def close(self) -> None:
        """Cancel calls; waiting callers get `Closed`."""
        self._acknowledgements.close()
        self._changes.close()

    async def _acknowledge(
        self, entries: Mapping[GroupAcquisition, Sequence[int]]
    ) -> Sequence[Acknowledged]:
        request = AcknowledgeRequest(
            entries=[
                GroupDelivered(
                    group=key.group, delivered=_delivered(key, offsets), receiver=key.receiver
                )
                for key, offsets in entries.items()
            ]
        )
        reply = await self._cluster.call(
            self._cluster.in_flight_service().Acknowledge,
            request,
            unavailable=OffsetServiceUnavailable,
        )
        return reply.results

    async def _change(
        self, entries: Mapping[SettleRequest, Sequence[int]]
    ) -> Sequence[ChangedVisibility]:
        request = ChangeVisibilityRequest(
            changes=[
                VisibilityChange(
                    group=key.acquired.group,
                    delivered=_delivered(key.acquired, offsets),
                    visible_after_ms=key.visible_after_ms,
                    uncounted=key.uncounted,
                    extend=key.extend,
                    reason=key.reason,
                    receiver=key.to.receiver if key.to is not None else "",
                    key_id=key.to.key_id if key.to is not None else "",
                    held_ms_max=key.held_ms_max,
                )
                for key, offsets in entries.items()
            ]
        )
        reply = await self._cluster.call(
            self._cluster.in_flight_service().ChangeVisibility,
            request,
            unavailable=OffsetServiceUnavailable,
        )
        return reply.results


def by_acquisition(
    receipts: Iterable[ReceiptHandle],
) -> dict[tuple[MessageQueue, int, int], list[int]]:
    """Return the offsets by queue, acquisition and block; each group is one entry of a call."""
    found: dict[tuple[MessageQueue, int, int], list[int]] = {}
    for queue, acquisition, offset in receipts:
        key = queue, acquisition, offset // BLOCK_OFFSETS
        found.setdefault(key, []).append(offset)
    return found


def _delivered(key: GroupAcquisition, offsets: Sequence[int]) -> Delivered:
    first = min(offsets)
    return Delivered(
        queue=queue_to_wire(key.queue),
        acquisition=key.acquisition,
        first_offset=first,
        offsets=mask_of(offsets, first),
    )
