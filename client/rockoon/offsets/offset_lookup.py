"""Offsets from the brokers: ends of queues, and offsets for times."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from rockoon.errors import InvalidArgument, from_wire
from rockoon.net.connection import Connection
from rockoon.offsets.start import ConsumeFrom, Start
from rockoon_core import start_position
from rockoon_core.message_queue import MessageQueue, in_calls
from rockoon_proto.v1 import broker_pb2 as broker_pb
from rockoon_proto.v1 import nameserver_pb2 as wire


class OffsetLookup:
    """Asks each broker about all its queues, with as few calls as the broker's limit allows."""

    def __init__(self, cluster: Connection) -> None:
        self._cluster = cluster

    async def choose(
        self, queues: Iterable[MessageQueue], consume_from: ConsumeFrom
    ) -> dict[MessageQueue, Start]:
        """Return the offsets for a start policy, for a reader that stores no progress. Raises
        QueueNotFound: a queue does not exist; BrokerUnavailable: a broker does not answer."""
        chosen: dict[MessageQueue, Start] = {}
        for broker, some in _calls(queues):
            states, as_of_ms = await self._status(broker, some, offsets_only=True)
            times: Mapping[MessageQueue, int] = {}
            if consume_from.kind == wire.CONSUME_FROM_TIMESTAMP:
                times = await self._search(broker, some, consume_from.value)
            elif consume_from.kind == wire.CONSUME_FROM_DURATION:
                times = await self._search(broker, some, as_of_ms - consume_from.value)
            for queue, state in states.items():
                offset = _offset(consume_from, state, times.get(queue))
                chosen[queue] = Start(
                    queue,
                    offset,
                    "ASSIGNED",
                    f"{wire.ConsumeFrom.Name(consume_from.kind)} of "
                    f"[{state.min_offset}, {state.max_offset})",
                )
        return chosen

    async def states(
        self, queues: Iterable[MessageQueue]
    ) -> dict[MessageQueue, start_position.QueueState]:
        """Return the queue states from which a start position is decided."""
        found: dict[MessageQueue, start_position.QueueState] = {}
        for broker, some in _calls(queues):
            states, as_of_ms = await self._status(broker, some)
            for queue, state in states.items():
                is_known = state.HasField("first_in_memory_by_distance")
                in_memory = state.first_in_memory_by_distance if is_known else None
                found[queue] = start_position.QueueState(
                    state.min_offset, state.max_offset, in_memory, as_of_ms
                )
        return found

    async def ends(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, tuple[int, int]]:
        """Return the oldest offset of each queue, and one past the newest."""
        found: dict[MessageQueue, tuple[int, int]] = {}
        for broker, some in _calls(queues):
            states, _ = await self._status(broker, some, offsets_only=True)
            found.update(
                {queue: (each.min_offset, each.max_offset) for queue, each in states.items()}
            )
        return found

    async def search(self, times_ms: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Return, for each queue, the first offset that was stored at its time or later."""
        by_time: dict[int, list[MessageQueue]] = defaultdict(list)
        for queue, time_ms in times_ms.items():
            by_time[time_ms].append(queue)
        found: dict[MessageQueue, int] = {}
        for time_ms, queues in by_time.items():
            for broker, some in _calls(queues):
                found.update(await self._search(broker, some, time_ms))
        return found

    async def _status(
        self, broker: str, queues: list[MessageQueue], *, offsets_only: bool = False
    ) -> tuple[dict[MessageQueue, broker_pb.QueueState], int]:
        request = broker_pb.QueueStatusRequest(
            queues=_to_wire(queues),
            route_revision=self._revision(queues),
            offsets_only=offsets_only,
        )
        reply = await self._cluster.call_broker(broker, "QueueStatus", request)
        for state in reply.queues:
            if state.HasField("error"):
                raise from_wire(state.error)
        return dict(zip(queues, reply.queues, strict=True)), reply.as_of_ms

    def _revision(self, queues: list[MessageQueue]) -> int:
        return max(self._cluster.routes.topic_revision(queue.topic) for queue in queues)

    async def _search(
        self, broker: str, queues: list[MessageQueue], timestamp_ms: int
    ) -> dict[MessageQueue, int]:
        request = broker_pb.SearchOffsetRequest(
            queues=_to_wire(queues),
            timestamp_ms=timestamp_ms,
            route_revision=self._revision(queues),
        )
        reply = await self._cluster.call_broker(broker, "SearchOffset", request)
        for found in reply.offsets:
            if found.HasField("error"):
                raise from_wire(found.error)
        return {queue: found.offset for queue, found in zip(queues, reply.offsets, strict=True)}


def _calls(queues: Iterable[MessageQueue]) -> Iterator[tuple[str, list[MessageQueue]]]:
    """Yield the calls for some queues: the broker's name, and the queues of one call."""
    by_broker: dict[str, list[MessageQueue]] = defaultdict(list)
    for queue in queues:
        by_broker[queue.broker].append(queue)
    for broker, own in by_broker.items():
        for some in in_calls(own):
            yield broker, some


def _to_wire(queues: Iterable[MessageQueue]) -> list[broker_pb.BrokerQueue]:
    return [broker_pb.BrokerQueue(topic=queue.topic, queue_id=queue.queue_id) for queue in queues]


def _offset(consume_from: ConsumeFrom, state: broker_pb.QueueState, by_time: int | None) -> int:
    if by_time is not None:
        return by_time
    if consume_from.kind == wire.CONSUME_FROM_FIRST:
        return state.min_offset
    if consume_from.kind == wire.CONSUME_FROM_LAST:
        return state.max_offset
    if consume_from.kind == wire.CONSUME_FROM_TAIL:
        return max(state.max_offset - consume_from.value, state.min_offset)
    raise InvalidArgument(reason="a reader without a group needs a start position")
