"""A receiver of a group, message by message, for scenarios."""

from typing import Any

from offset.cluster import GROUP, TOPIC, Cluster

from rockoon_proto.v1 import in_flight_pb2 as pb
from rockoon_proto.v1 import nameserver_pb2 as ns
from rockoon_proto.v1.errors_pb2 import Error
from rockoon_proto.v1.in_flight_pb2_grpc import InFlightServiceStub

FIRST = ns.StartPolicy(consume_from=ns.CONSUME_FROM_FIRST)
HOUR_MS = 3_600_000


class Receiver:
    """A receiver of the group, and its last acquired messages."""

    def __init__(self, cluster: Cluster, **wanted: Any) -> None:
        self._cluster = cluster
        self._wanted = {
            "group": GROUP,
            "receiver": "r",
            "messages_max": 32,
            "visible_after_ms": HOUR_MS,
            "policy": FIRST,
            **wanted,
        }
        self.granted = pb.Granted()
        self.policy = FIRST

    @property
    def stub(self) -> Any:
        # At the current address: the service may have been started again.
        return InFlightServiceStub(self._cluster.channel)

    def reach(self, queue_id: int = 0, topic: str = TOPIC, **more: Any) -> pb.QueueReach:
        queue = self._cluster.broker.queue(topic, queue_id)
        said = {"min_offset": queue.first, "end_offset": queue.end, **more}
        return pb.QueueReach(queue=self._cluster.ref(queue_id, topic), **said)

    async def acquire(self, *reaches: pb.QueueReach, **wanted: Any) -> list[Any]:
        """Return (queue, attempt, offsets) of each acquisition."""
        wish = pb.Wanted(queues=reaches or [self.reach()], **{**self._wanted, **wanted})
        request = pb.AcquireRequest(wanted=[wish], route_revision=self._cluster.nameserver.revision)
        (self.granted,) = (await self.stub.Acquire(request)).granted
        return [
            (each.queue.queue_id, each.attempt, offsets_of(each.first_offset, each.offsets))
            for each in self.granted.acquired
        ]

    def delivered(self, *offsets: int, of: int = 0) -> pb.GroupDelivered:
        """Return some messages of an acquisition; all of them if none is named."""
        got = self.granted.acquired[of]
        wanted = offsets or offsets_of(got.first_offset, got.offsets)
        mask = sum(1 << (offset - got.first_offset) for offset in wanted)
        delivered = pb.Delivered(
            queue=got.queue,
            acquisition=got.acquisition,
            first_offset=got.first_offset,
            offsets=mask.to_bytes(mask.bit_length() // 8 + 1, "little"),
        )
        return pb.GroupDelivered(group=self._wanted["group"], delivered=delivered)

    async def acknowledge(self, *entries: pb.GroupDelivered) -> list[list[int]]:
        """Return the refused offsets of each entry."""
        entries = entries or tuple(
            self.delivered(of=number) for number in range(len(self.granted.acquired))
        )
        reply = await self.stub.Acknowledge(pb.AcknowledgeRequest(entries=entries))
        return [
            offsets_of(entry.delivered.first_offset, result.refused)
            for entry, result in zip(entries, reply.results, strict=True)
        ]

    async def change(
        self, entry: pb.GroupDelivered, after_ms: int, **more: Any
    ) -> pb.ChangedVisibility:
        change = pb.VisibilityChange(
            group=entry.group, delivered=entry.delivered, visible_after_ms=after_ms, **more
        )
        reply = await self.stub.ChangeVisibility(pb.ChangeVisibilityRequest(changes=[change]))
        (result,) = reply.results
        return result  # type: ignore[no-any-return]

    async def listed(self, queue_id: int = 0) -> pb.QueueInFlight:
        reply = await self.stub.ListInFlight(pb.ListInFlightRequest(group=GROUP, topic=TOPIC))
        return next(each for each in reply.queues if each.queue.queue_id == queue_id)


def offsets_of(first: int, offsets: bytes) -> list[int]:
    bits = int.from_bytes(offsets, "little")
    return [first + bit for bit in range(bits.bit_length()) if bits >> bit & 1]


def refusal(granted: pb.Granted) -> str:
    (refused,) = granted.refused
    return Error.Code.Name(refused.error.code)


async def committed(cluster: Cluster, queue_id: int = 0) -> int:
    ref = cluster.ref(queue_id)
    return next(each.offset for each in await cluster.progress() if each.queue == ref)
