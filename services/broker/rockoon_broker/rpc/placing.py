"""Requests of one AppendStream on their way into the log, as far as its caller may send them."""

from collections.abc import Awaitable, Callable, Sequence

from rockoon_broker.append import AppendResult
from rockoon_broker.broker import Broker
from rockoon_broker.idempotence.replay import takes_sequences
from rockoon_broker.store.log.batch import Batch, SequencedBatch, SequenceKey
from rockoon_core.errors import InvalidArgument, RockoonError
from rockoon_format.resources import topic_need
from rockoon_proto.v1 import broker_pb2
from rockoon_runtime.access.callers import Caller


class StreamPlacing:
    """Places the batches of a stream.

    Args:
        broker: the one that serves; raises RockoonError where none does.
        place: puts a request's batch into the log by itself.
        note_batch: called for every batch that is placed together with others.
        caller: whose stream it is; None may send all.
    """

    def __init__(
        self,
        broker: Callable[[], Broker],
        place: Callable[[broker_pb2.AppendRequest], Awaitable[AppendResult]],
        note_batch: Callable[[], None],
        caller: Caller | None,
    ) -> None:
        self._broker = broker
        self._place = place
        self._note_batch = note_batch
        self._caller = caller

    async def alone(self, request: broker_pb2.AppendRequest) -> AppendResult:
        """Place a batch; raises RockoonError."""
        self._check(request)
        return await self._place(request)

    def together(
        self, requests: Sequence[broker_pb2.AppendRequest]
    ) -> Sequence[AppendResult | None]:
        """Place what can be by one write; None for what is to be placed alone."""
        placed: list[AppendResult | None] = [None] * len(requests)
        indices: list[int] = []
        batches: list[Batch] = []
        try:
            broker = self._broker()
        except RockoonError:
            return placed
        for index, request in enumerate(requests):
            # One that is traced has a span of its own.
            if request.handling == broker_pb2.ORDINARY and not request.traceparent:
                try:
                    self._check(request)
                    batches.append(batch_of(request))
                except RockoonError:
                    continue
                indices.append(index)
        revisions = [requests[index].route_revision for index in indices]
        for index, result in zip(indices, broker.append_joint(batches, revisions), strict=True):
            if result is not None:
                self._note_batch()
                placed[index] = result
        return placed

    def _check(self, request: broker_pb2.AppendRequest) -> None:
        if self._caller is not None:
            self._caller.require(*topic_need("write", request.topic))


def batch_of(request: broker_pb2.AppendRequest) -> Batch:
    """The batch that a request brings.

    Raises:
        InvalidArgument: what it says of sequence numbers is wrong.
    """
    return Batch(
        request.topic,
        request.queue_id,
        request.frames,
        request.record_lengths,
        sequenced_batch(request) if request.producer_id else None,
    )


def sequenced_batch(request: broker_pb2.AppendRequest) -> SequencedBatch:
    """What an idempotent producer says of its batch."""
    if request.handling != broker_pb2.ORDINARY:
        raise InvalidArgument(reason="delayed and half messages have no sequence numbers")
    if not takes_sequences(request.topic):
        raise InvalidArgument(reason=f"messages of {request.topic!r} have no sequence numbers")
    key = SequenceKey(request.producer_id, request.topic, request.queue_id)
    return SequencedBatch(key, request.first_sequence, max(request.first_sent_ms_ago, 0))
