"""Calls to brokers: ends of queues, times, offsets for a time. One call per broker."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

import grpc

from rockoon_core.channels import Channels, Tls
from rockoon_core.errors import BrokerUnavailable, RockoonError, from_wire
from rockoon_core.failed_call import from_rpc_error
from rockoon_core.message_queue import MessageQueue, in_calls
from rockoon_core.protocol import CLUSTER_METADATA_KEY
from rockoon_core.signature import Credentials
from rockoon_core.start_position import ExpectedDeletion, QueueState
from rockoon_offset.route_table import OffsetRoutes
from rockoon_proto.v1 import broker_pb2 as pb
from rockoon_proto.v1.broker_pb2_grpc import BrokerStub

if TYPE_CHECKING:
    from rockoon_proto.v1.broker_pb2_grpc import BrokerAsyncStub

# In a QueueStatusRequest: requests only the state of the queue, and nothing about a message. All
# offsets of messages are lower.
OFFSET_MAX = 1 << 62

Answer = TypeVar("Answer")
Item = TypeVar("Item")
Answers = dict[MessageQueue, Answer | RockoonError]


class Brokers:
    """Client of the brokers: one call reads many queues, each with a result or the error of its
    broker.

    Args:
        table: broker addresses; read for every call.
        cluster: sent with each call, so that a broker of another cluster refuses it.
        timeout_seconds: for each call.
        tls: certificates of the connections; None: plain connections.
        access: signs the calls; None: calls are not signed.

    Raises:
        PemError: a file of `tls` cannot be used.
    """

    def __init__(
        self,
        table: OffsetRoutes,
        cluster: str,
        timeout_seconds: float,
        tls: Tls | None = None,
        access: Credentials | None = None,
    ) -> None:
        self._table = table
        self._metadata = ((CLUSTER_METADATA_KEY, cluster),)
        self._timeout_seconds = timeout_seconds
        self._channels = Channels(tls, access)
        # Broker name → (last reported disk state, broker clock of that report in epoch ms).
        self.disks: dict[str, tuple[pb.DiskState, int]] = {}

    async def queue_states(
        self, queues: Iterable[MessageQueue], *, offsets_only: bool = False
    ) -> Answers[QueueState]:
        """Read the ends of each queue, and whether its first message is in memory.

        Args:
            offsets_only: read only the ends.
        """
        asked = {(queue, None) for queue in queues}
        states = await self.states_at_offsets(asked, offsets_only=offsets_only)
        return {queue: state for (queue, _), state in states.items()}

    async def states_at_offsets(
        self, asked: Iterable[tuple[MessageQueue, int | None]], *, offsets_only: bool = False
    ) -> dict[tuple[MessageQueue, int | None], QueueState | RockoonError]:
        """Read the state of each queue, and store time and expected deletion of one message.

        Args:
            asked: queues and offsets of the messages; None: no message of the queue.
            offsets_only: do not read whether the first message of a queue is in memory.
        """

        async def ask(
            broker: str, part: list[tuple[MessageQueue, int | None]]
        ) -> dict[tuple[MessageQueue, int | None], QueueState | RockoonError]:
            queues = [queue for queue, _ in part]
            offsets = [OFFSET_MAX if offset is None else offset for _, offset in part]
            request = pb.QueueStatusRequest(
                queues=map(on_broker, queues),
                route_revision=self._route_revision(queues),
                offsets=offsets if any(offset != OFFSET_MAX for offset in offsets) else (),
                offsets_only=offsets_only,
                without_times=True,
            )
            reply = await self._stub(broker).QueueStatus(
                request, timeout=self._timeout_seconds, metadata=self._metadata
            )
            if reply.HasField("disk"):
                self.disks[broker] = (reply.disk, reply.as_of_ms)
            return {
                item: from_wire(state.error)
                if state.HasField("error")
                else state_from_wire(state, reply.as_of_ms)
                for item, state in zip(part, reply.queues, strict=True)
            }

        return await self._ask_each(asked, lambda item: item[0].broker, ask)

    async def deletion_reasons(
        self, offsets: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, int]:
        """Return the DeletionReason (wire value) of each message whose broker answered."""
        states = await self.states_at_offsets(offsets.items())
        return {
            queue: state.asked_deletion
            for (queue, _), state in states.items()
            if isinstance(state, QueueState)
        }

    async def search(self, times_ms: Mapping[MessageQueue, int]) -> Answers[int]:
        """Return each queue's first offset stored at or after its time, else the queue's end."""
        by_time: dict[int, list[MessageQueue]] = {}
        for queue, time_ms in times_ms.items():
            by_time.setdefault(time_ms, []).append(queue)
        answers: Answers[int] = {}
        for time_ms, queues in by_time.items():
            answers.update(await self._search(queues, time_ms))
        return answers

    async def _search(self, queues: list[MessageQueue], time_ms: int) -> Answers[int]:
        async def ask(broker: str, part: list[MessageQueue]) -> Answers[int]:
            request = pb.SearchOffsetRequest(
                queues=map(on_broker, part),
                timestamp_ms=time_ms,
                boundary=pb.LOWER,
                route_revision=self._route_revision(part),
            )
            reply = await self._stub(broker).SearchOffset(
                request, timeout=self._timeout_seconds, metadata=self._metadata
            )
            return {
                queue: from_wire(found.error) if found.HasField("error") else found.offset
                for queue, found in zip(part, reply.offsets, strict=True)
            }

        return await self._ask_each(queues, lambda queue: queue.broker, ask)

    async def close(self) -> None:
        await self._channels.close()

    async def _ask_each(
        self,
        items: Iterable[Item],
        broker_of: Callable[[Item], str],
        ask: Callable[[str, list[Item]], Awaitable[dict[Item, Answer | RockoonError]]],
    ) -> dict[Item, Answer | RockoonError]:
        by_broker: dict[str, list[Item]] = {}
        for item in items:
            by_broker.setdefault(broker_of(item), []).append(item)
        answers: dict[Item, Answer | RockoonError] = {}

        async def ask_one(broker: str, part: list[Item]) -> None:
            try:
                answers.update(await ask(broker, part))
            except grpc.RpcError as failure:
                reason = from_rpc_error(failure, BrokerUnavailable, broker=broker)
                answers.update(dict.fromkeys(part, reason))
            except BrokerUnavailable as reason:
                answers.update(dict.fromkeys(part, reason))

        async with asyncio.TaskGroup() as tasks:
            for broker, whole in by_broker.items():
                # If this service loses leadership, it closes its channels and the calls are
                # cancelled. Then this result remains.
                answers.update(dict.fromkeys(whole, BrokerUnavailable(broker=broker)))
                for part in in_calls(whole):
                    tasks.create_task(ask_one(broker, part), name=f"ask {broker}")
        return answers

    def _stub(self, broker: str) -> "BrokerAsyncStub":
        node = self._table.brokers.get(broker)
        if node is None:
            raise BrokerUnavailable(broker=broker)
        self._channels.learn([node])
        stub: BrokerAsyncStub = self._channels.stub(node.address, BrokerStub)
        return stub

    def _route_revision(self, queues: list[MessageQueue]) -> int:
        """Return the latest revision that changed a topic of the queues, or created one of its
        queues. A broker answers once it knows this revision.
        """
        names = {queue.topic for queue in queues} & self._table.topics.keys()
        topics = [self._table.topics[name] for name in names]
        return max(
            (max(topic.modified_revision, *topic.create_revisions.values(), 0) for topic in topics),
            default=0,
        )


def on_broker(queue: MessageQueue) -> pb.BrokerQueue:
    return pb.BrokerQueue(topic=queue.topic, queue_id=queue.queue_id)


def state_from_wire(state: pb.QueueState, as_of_ms: int) -> QueueState:
    def given(name: str, value: Answer) -> Answer | None:
        return value if state.HasField(name) else None

    loss_at_ms = given("asked_loss_at_ms", state.asked_loss_at_ms)
    return QueueState(
        min_offset=state.min_offset,
        max_offset=state.max_offset,
        first_in_memory=given("first_in_memory_by_distance", state.first_in_memory_by_distance),
        as_of_ms=as_of_ms,
        asked_store_ms=given("asked_store_timestamp_ms", state.asked_store_timestamp_ms),
        asked_loss=None
        if loss_at_ms is None
        else ExpectedDeletion(loss_at_ms, state.asked_loss_cause),
        asked_deletion=state.asked_deletion,
    )
