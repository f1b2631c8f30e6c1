"""Requests of one AppendStream on their way into the log, as far as its caller may send them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from rockoon_broker.append import AppendResult
from rockoon_broker.idempotence.replay import takes_sequences
from rockoon_broker.rpc.large_requests import PlainRequest, Request, records_of
from rockoon_broker.rpc.turn_appends import Placed, TurnAppends
from rockoon_broker.store.log.batch import (
    Batch,
    RoutedBatch,
    SequencedBatch,
    SequenceKey,
)
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_core.errors import InvalidArgument, RockoonError
from rockoon_format.resources import topic_need
from rockoon_proto.v1 import broker_pb2
from rockoon_runtime.access.callers import Caller


class StreamPlacing:
    """Places the batches of a stream.

    Args:
        turn: where those that may be placed together with others go.
        place: puts a request's batch into the log by itself.
        note_batch: called for every batch that is placed together with others.
        caller: whose stream it is; None may send all.
    """

    def __init__(
        self,
        turn: TurnAppends,
        place: Callable[[Request], Awaitable[AppendResult]],
        note_batch: Callable[[], None],
        caller: Caller | None,
    ) -> None:
        self._turn = turn
        self._place = place
        self._note_batch = note_batch
        self._caller = caller
        # Messages of this stream that are not answered.
        self._unanswered = 0

    async def alone(self, request: Request) -> AppendResult:
        """Place a batch; raises RockoonError."""
        self._check(request)
        return await self._place(request)

    async def together(self, requests: Sequence[Request]) -> Placed:
        """Place what can be by one write; None for what is to be placed alone."""
        batches: list[RoutedBatch] = []
        indices: list[int] = []
        # Those of a queue stay in their order: when one is placed alone, so are the others.
        apart = {_queue(request) for request in requests if _is_apart(request)}
        for index, request in enumerate(requests):
            if not apart or _queue(request) not in apart:
                try:
                    self._check(request)
                    batches.append(RoutedBatch(batch_of(request), request.route_revision))
                except RockoonError:
                    continue
                indices.append(index)
        if not batches:
            return [None] * len(requests)
        try:
            found = self._turn.place(batches, unanswered=self._unanswered)
            if isinstance(found, asyncio.Future):
                found = await found
        except RockoonError:
            # Nobody serves any more: each is told so.
            return [None] * len(requests)
        for result in found:
            if result is not None:
                self._note_batch()
        if len(indices) == len(requests):
            return found
        placed: list[AppendResult | None] = [None] * len(requests)
        for index, result in zip(indices, found, strict=True):
            placed[index] = result
        return placed

    def at_once(self, request: Request) -> "AppendResult | asyncio.Future[Placed] | None":
        """Place a batch that may be placed with others, or say when it is; None as of `together`,
        which the future may bring as well."""
        if _is_apart(request):
            return None
        try:
            self._check(request)
            routed = RoutedBatch(batch_of(request), request.route_revision)
            found = self._turn.place((routed,), unanswered=self._unanswered)
        except RockoonError:
            return None
        if isinstance(found, asyncio.Future):
            # Who ends in order looks before it is done.
            self._note_batch()
            return found
        if found[0] is not None:
            self._note_batch()
        return found[0]

    def came(self) -> None:
        """A message has come."""
        self._unanswered += 1
        self._turn.came(self)

    def went(self, messages: int = 1) -> None:
        """Messages are answered, or never will be."""
        self._unanswered -= messages
        self._turn.unanswered -= messages

    def _check(self, request: Request) -> None:
        if self._caller is not None:
            self._caller.require(*topic_need("write", request.topic))


def _is_apart(request: Request) -> bool:
    """Whether a batch is always placed alone: one that is traced has a span of its own."""
    return request.handling != broker_pb2.ORDINARY or bool(request.traceparent)


def _queue(request: Request) -> QueueKey:
    return request.topic, request.queue_id


def batch_of(request: Request) -> Batch:
    """The batch that a request brings.

    Raises:
        InvalidArgument: what it says of sequence numbers is wrong.
    """
    if isinstance(request, PlainRequest):
        return request.batch
    source, bounds = records_of(request)
    return Batch(
        request.topic,
        request.queue_id,
        source,
        request.record_lengths,
        sequenced_batch(request) if request.producer_id else None,
        bounds=bounds,
    )


def sequenced_batch(request: Request) -> SequencedBatch:
    """What an idempotent producer says of its batch."""
    if request.handling != broker_pb2.ORDINARY:
        raise InvalidArgument(reason="delayed and half messages have no sequence numbers")
    if not takes_sequences(request.topic):
        raise InvalidArgument(reason=f"messages of {request.topic!r} have no sequence numbers")
    key = SequenceKey(request.producer_id, request.topic, request.queue_id)
    return SequencedBatch(key, request.first_sequence, max(request.first_sent_ms_ago, 0))
