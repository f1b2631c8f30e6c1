"""Receivers whose service is killed while they work; all replies that they got must stay valid."""

import asyncio
import random
from contextlib import suppress
from typing import Any

from grpc import aio

from rockoon_proto.v1 import in_flight_pb2 as pb
from rockoon_proto.v1 import nameserver_pb2 as ns
from rockoon_proto.v1.offset_pb2 import QueueRef

VISIBLE_MS = 400
FIRST = ns.StartPolicy(consume_from=ns.CONSUME_FROM_FIRST)

Message = tuple[int, int]
"""Queue id and offset."""


class ReceivedMessages:
    """Messages that the receivers of one group have received and finished.

    Args:
        group: of the receivers.
        queues: number of queues.
        messages: number of messages of each queue.
        chance: chooses the operations.
    """

    def __init__(
        self, group: str, queues: list[QueueRef], messages: int, chance: random.Random
    ) -> None:
        self._group = group
        self._queues = queues
        self._chance = chance
        self._messages = messages
        self.all = {(queue.queue_id, at) for queue in queues for at in range(messages)}
        # Acknowledged with a successful reply; `asked` also has those whose reply was lost.
        self.done: set[Message] = set()
        self.asked: set[Message] = set()
        self.got: set[Message] = set()
        self.redelivered = 0

    async def receive(
        self, stub: Any, *, finishes: bool = False, enough: float = float("inf")
    ) -> None:
        """Receive messages; acknowledge some, give some back, and leave the rest.

        Args:
            stub: of the InFlightService; its exceptions are raised.
            finishes: acknowledge everything, and return when no message is left.
            enough: return after this number of acknowledged messages.
        """
        while len(self.done) < enough:
            done_before = self.done.copy()
            granted = await self._acquire(stub)
            for each in granted.acquired:
                got = {(each.queue.queue_id, at) for at in offsets_of(each)}
                assert not got & done_before, "an acknowledged message came again"
                self.got |= got
                self.redelivered += len(got) if each.attempt > 1 else 0
                choice = 1.0 if finishes else self._chance.random()
                if choice > 0.5:
                    await self._acknowledge(stub, each, got)
                elif choice > 0.3:
                    part = set(self._chance.sample(sorted(got), (len(got) + 1) // 2))
                    await self._acknowledge(stub, each, part)
                elif choice > 0.1:
                    await self._give_back(stub, each)
            if finishes and not granted.acquired and not granted.next_visible_at_ms:
                assert self.got == self.all
                assert self.asked == self.all
                return
            if not granted.acquired:
                await asyncio.sleep(VISIBLE_MS / 4000)

    async def _acquire(self, stub: Any) -> pb.Granted:
        reaches = [pb.QueueReach(queue=each, end_offset=self._messages) for each in self._queues]
        self._chance.shuffle(reaches)
        wanted = pb.Wanted(
            group=self._group,
            receiver="r",
            queues=reaches,
            messages_max=8,
            visible_after_ms=VISIBLE_MS,
            policy=FIRST,
        )
        (granted,) = (await stub.Acquire(pb.AcquireRequest(wanted=[wanted]))).granted
        assert not granted.error.message, granted
        for refused in granted.refused:
            assert refused.error.retriable, refused
        return granted  # type: ignore[no-any-return]

    async def _acknowledge(self, stub: Any, of: pb.Acquired, chosen: set[Message]) -> None:
        self.asked |= chosen
        offsets = sorted(at for _, at in chosen)
        mask = sum(1 << (at - of.first_offset) for at in offsets)
        delivered = pb.Delivered(
            queue=of.queue,
            acquisition=of.acquisition,
            first_offset=of.first_offset,
            offsets=mask.to_bytes(mask.bit_length() // 8 + 1, "little"),
        )
        entry = pb.GroupDelivered(group=self._group, delivered=delivered)
        (result,) = (await stub.Acknowledge(pb.AcknowledgeRequest(entries=[entry]))).results
        refused = int.from_bytes(result.refused, "little")
        self.done |= {
            (of.queue.queue_id, at) for at in offsets if not refused >> (at - of.first_offset) & 1
        }

    async def _give_back(self, stub: Any, of: pb.Acquired) -> None:
        change = pb.VisibilityChange(
            group=self._group,
            delivered=pb.Delivered(
                queue=of.queue,
                acquisition=of.acquisition,
                first_offset=of.first_offset,
                offsets=of.offsets,
            ),
            visible_after_ms=self._chance.choice((0, 50)),
        )
        await stub.ChangeVisibility(pb.ChangeVisibilityRequest(changes=[change]))

    async def receive_until_it_dies(self, stub: Any) -> None:
        with suppress(aio.AioRpcError):
            await self.receive(stub)


def offsets_of(acquired: pb.Acquired) -> list[int]:
    bits = int.from_bytes(acquired.offsets, "little")
    return [acquired.first_offset + at for at in range(bits.bit_length()) if bits >> at & 1]
