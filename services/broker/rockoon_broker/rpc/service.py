"""The Broker gRPC service: each method decodes, calls one method, encodes."""
# ruff: noqa: ARG002 - gRPC hands every method a request and a context

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
from grpc import aio

from rockoon_broker import cold_reads
from rockoon_broker.append import AppendResult
from rockoon_broker.broker import DRAINED, Broker
from rockoon_broker.clock import Clock
from rockoon_broker.cooperative import in_turns
from rockoon_broker.retries.send_back import SendBacks
from rockoon_broker.rpc.append_clients import AppendClient, append_streams, client_of
from rockoon_broker.rpc.append_stream import (
    AppendResults,
    AppendStreamCall,
    GroupAppends,
    reply_to,
)
from rockoon_broker.rpc.compaction import (
    describe_compaction,
    discard_generation,
    publish_generation,
    put_generation_file,
    read_generation,
)
from rockoon_broker.rpc.large_requests import Request, append_request, batch_of, records_of
from rockoon_broker.rpc.log_columns import WantedColumns
from rockoon_broker.rpc.log_reads import read_log
from rockoon_broker.rpc.message_reads import query_messages, read
from rockoon_broker.rpc.pending_messages import (
    cancel_delayed,
    check_transactions,
    end_transaction,
    list_delayed,
    list_transactions,
)
from rockoon_broker.rpc.pull_answers import PullAnswer, pull_reply, query_of, stream_reply
from rockoon_broker.rpc.pull_stream import SUBSCRIPTIONS_MAX, PullStreamCall
from rockoon_broker.rpc.queue_states import queue_states
from rockoon_broker.store.log.batch import RoutedBatch
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.reading.reader import TimeBoundary
from rockoon_broker.topics.served_topics import GIVEN_UP
from rockoon_core.clock import wait_at_most, wall_clock_ms
from rockoon_core.errors import (
    Busy,
    InvalidArgument,
    NotReady,
    RockoonError,
)
from rockoon_core.message_queue import QUEUES_PER_CALL_MAX
from rockoon_format.names import is_system_topic
from rockoon_format.record import encode_host
from rockoon_proto.v1 import broker_pb2, broker_pb2_grpc
from rockoon_rpc.server_call import ServerCall
from rockoon_runtime.access.callers import current_caller
from rockoon_runtime.error_guard import CallTimes

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from rockoon_broker.rpc.pull_tracing import PullTracing
from collections.abc import Iterator

from rockoon_broker.rpc.compaction import compaction_state
from rockoon_broker.rpc.pending_messages import delayed_counts, describe_transactions
from rockoon_broker.store.retention.foreign_store import KEEPS_ALL_FILES
from rockoon_format import kernel

SERVICE_NAME = "rockoon.v1.Broker"

# Time for which new streams wait for this copy to lead. It first derives state from its log.
EXPECTED_SECONDS_MAX = 0.5
# Time limit for the other copies to confirm that this one still leads.
CONFIRMED_SECONDS_MAX = 1.0
BOUNDARIES = {broker_pb2.LOWER: TimeBoundary.LOWER, broker_pb2.UPPER: TimeBoundary.UPPER}


def add_to_server(service: "BrokerService", server: aio.Server) -> None:
    """Register every method; methods that transfer records get custom serialisers, which override
    the generated ones."""
    broker_pb2_grpc.add_BrokerServicer_to_server(service, server)
    # Replies in pieces, which Rockoon's HTTP/2 layer sends unchanged; gRPC has no type for them.
    pull: Any = grpc.unary_unary_rpc_method_handler(
        service.Pull,
        request_deserializer=broker_pb2.PullRequest.FromString,
    )
    in_pieces: Any = stream_reply
    pull_stream = grpc.stream_stream_rpc_method_handler(
        service.PullStream,
        request_deserializer=broker_pb2.PullStreamRequest.FromString,
        response_serializer=in_pieces,
    )
    # Its replies are already bytes.
    append_stream: Any = grpc.stream_stream_rpc_method_handler(
        service.AppendStream,
        request_deserializer=append_request,
    )
    append = grpc.unary_unary_rpc_method_handler(
        service.Append,
        request_deserializer=append_request,
        response_serializer=broker_pb2.AppendReply.SerializeToString,
    )
    # Its reply is already in pieces.
    read_log_method: Any = grpc.unary_unary_rpc_method_handler(
        service.ReadLog,
        request_deserializer=broker_pb2.ReadLogRequest.FromString,
    )
    handlers: dict[str, Any] = {
        "Append": append,
        "AppendStream": append_stream,
        "Pull": pull,
        "PullStream": pull_stream,
        "ReadLog": read_log_method,
    }
    server.add_registered_method_handlers(SERVICE_NAME, handlers)


def not_ready(reason: str) -> NotReady:
    """Return the error of a broker that does not serve."""
    return NotReady(service="the broker", reason=reason)


class BrokerService(broker_pb2_grpc.BrokerServicer):
    """The servicer. Refuses all calls before `serve` and after `refuse`.

    Args:
        tasks: owns the tasks that read streams.
        clock: time of replies (`as_of_ms`), and duration of loop iterations.
        calls: records durations of batches in streams.
    """

    def __init__(self, tasks: asyncio.TaskGroup, clock: Clock, calls: CallTimes) -> None:
        self._tasks = tasks
        self._clock = clock
        self._calls = calls
        self._broker: Broker | None = None
        self._confirmed: Callable[[], Awaitable[None]] | None = None
        self._send_backs: SendBacks | None = None
        self._refusal: RockoonError = not_ready("it is recovering its store")
        # Set when this copy serves, or is refused, after `hold_calls`.
        self._expected: asyncio.Event | None = None
        self._store_host = b""
        self._streams: dict[AppendStreamCall, AppendClient] = {}
        self._pull_streams: set[PullStreamCall] = set()
        self._groups = GroupAppends(self._refuse_group, clock)
        # Bytes of single appends that wait for room in the log.
        self._single_bytes = 0
        # `_append`, with tracing if it is configured.
        self._append_traced: Callable[[Request], Awaitable[AppendResult]] = self._append
        # Called for every batch, because batches of a stream are not calls.
        self._record_batch: Callable[[], None] = lambda: None
        self._pull_tracing: PullTracing | None = None

    def trace(self, tracer: "Tracer") -> None:
        """Create a span for every traced batch, and for every pull that returns one."""
        from rockoon_broker.rpc.append_tracing import AppendTracing
        from rockoon_broker.rpc.pull_tracing import PullTracing

        self._pull_tracing = PullTracing(tracer)
        self._append_traced = AppendTracing(tracer, self._append).append

    def on_batch(self, callback: Callable[[], None]) -> None:
        """Call `callback` for every batch."""
        self._record_batch = callback

    def serve(self, broker: Broker, confirmed: Callable[[], Awaitable[None]] | None = None) -> None:
        """Start to answer calls.

        Args:
            confirmed: waits until a quorum has confirmed that this replica leads, or raises; None
                if the log has one copy. Answers with the end of a queue wait for it: a deposed
                leader that has not noticed it knows an older end, and a consumer beyond that end
                would be reset.
        """
        self._broker = broker
        self._groups.append_group = broker.append_group
        self._confirmed = confirmed
        self._release_calls()
        self._send_backs = SendBacks(broker)
        self._store_host = encode_host(*broker.store.settings.store_host)

    def hold_calls(self) -> None:
        """Let streams wait a moment for `serve`: routes already lead here, and a refused client
        would retry only after a pause."""
        if self._broker is None and self._expected is None:
            self._expected = asyncio.Event()

    def _release_calls(self) -> None:
        if self._expected is not None:
            self._expected.set()
            self._expected = None

    def refuse(self, refusal: RockoonError) -> None:
        """Refuse new calls and end streams; producers' streams end after their pending answers."""
        self._refusal = refusal
        self._broker = None
        self._groups.append_group = self._refuse_group
        self._release_calls()
        for stream in self._streams:
            stream.end()
        for pull_stream in self._pull_streams:
            pull_stream.end(refusal)

    async def _wait_expected(self) -> None:
        if self._expected is not None:
            await wait_at_most(EXPECTED_SECONDS_MAX, self._expected.wait())

    @property
    def is_serving(self) -> bool:
        return self._broker is not None

    @property
    def streams_open(self) -> int:
        """Number of AppendStreams, one per recently active producer."""
        return len(self._streams)

    @property
    def pull_subscriptions(self) -> int:
        """Number of queues read by PullStreams."""
        return sum(map(len, self._pull_streams))

    @property
    def messages_returned(self) -> int:
        """Messages stored in retry topics since the start."""
        return 0 if self._send_backs is None else self._send_backs.messages_returned

    @property
    def messages_dead(self) -> int:
        """Messages stored in dead-letter topics since the start."""
        return 0 if self._send_backs is None else self._send_backs.messages_dead

    def _open(self) -> Broker:
        if self._broker is None:
            raise self._refusal
        return self._broker

    async def _confirmed_leader(self) -> Broker:
        """Return the broker once it is certain that it leads its log; see `serve`.

        Raises:
            NotLeader: it does not lead.
            NotReady: too few copies confirm it in time.
        """
        broker = self._open()
        if self._confirmed is not None:
            try:
                async with asyncio.timeout(CONFIRMED_SECONDS_MAX):
                    await self._confirmed()
            except TimeoutError:
                raise not_ready("too few copies of its log confirm that it leads") from None
        return broker

    async def Append(self, request: Request, context: object) -> broker_pb2.AppendReply:
        if request.more:
            raise InvalidArgument(reason="several batches are for AppendStream")
        result = await self._append_bounded(request)
        if result.durable is not None:
            refusal = await result.durable
            if refusal is not None:
                raise refusal
        return reply_to(request.request_id, result)

    async def AppendStream(  # type: ignore[override]  # as `add_to_server` registers it
        self, request_iterator: Any, context: object
    ) -> AsyncIterator[bytes]:
        await self._wait_expected()
        self._open()
        caller = current_caller()
        stream = AppendStreamCall(
            self._groups, self._append_traced, self._record_batch, caller, self._calls, self._clock
        )
        self._streams[stream] = client_of(context, caller, self._clock.monotonic_seconds())
        reader = self._tasks.create_task(
            stream.read(aiter(request_iterator)), name="append-stream-reader"
        )
        try:
            if isinstance(context, ServerCall):
                # A lambda would be another Python call for each message.
                context.on_message = partial(stream.on_message, sender=context)
            async for reply in stream.answers():
                yield reply
        finally:
            if isinstance(context, ServerCall):
                context.on_message = None
            del self._streams[stream]
            reader.cancel()

    def _refuse_group(self, _: Sequence[Sequence[RoutedBatch]]) -> Sequence[AppendResults]:
        raise self._refusal

    async def _append_bounded(self, request: Request) -> AppendResult:
        """Append the batch of an `Append` call.

        Flow control does not limit such calls as it limits streams, so that the bytes that wait for
        room in the log are limited here.
        """
        records = records_of(request)
        start, end = records.bounds or (0, len(records.source))
        size = end - start
        bytes_max = self._open().settings.unsynced_bytes_max
        if self._single_bytes and self._single_bytes + size > bytes_max:
            raise Busy(reason=f"{self._single_bytes} bytes wait for room in the log")
        self._single_bytes += size
        try:
            return await self._append_traced(request)
        finally:
            self._single_bytes -= size

    async def _append(self, request: Request) -> AppendResult:
        self._record_batch()
        batch = batch_of(request)
        return await self._open().append(batch, request.route_revision, request.handling)

    async def Pull(  # type: ignore[override]  # as `add_to_server` registers it
        self, request: broker_pb2.PullRequest, context: object
    ) -> list[bytes]:
        query, columns = query_of(request), WantedColumns.of(request)
        received_ns = 0 if self._pull_tracing is None else time.time_ns()
        result = await self._open().pull(query, request.route_revision, request.create_revision)
        if query.offset > result.found.max_offset:
            await self._confirmed_leader()
        if self._pull_tracing is not None:
            self._pull_tracing.record_pull(query, result, received_ns)
        return pull_reply(result, columns)

    async def PullStream(  # type: ignore[override]  # as `add_to_server` registers it
        self, request_iterator: Any, context: object
    ) -> AsyncIterator[list[PullAnswer]]:
        await self._wait_expected()
        stream = PullStreamCall(
            self._open(),
            current_caller(),
            self._tasks,
            self._calls,
            self._clock,
            confirm_leader=None if self._confirmed is None else self._confirmed_leader,
            room=lambda: SUBSCRIPTIONS_MAX - self.pull_subscriptions,
            tracing=self._pull_tracing,
            reader=context if isinstance(context, ServerCall) else None,
        )
        self._pull_streams.add(stream)
        requests = aiter(request_iterator)
        reader = self._tasks.create_task(stream.read(requests), name="pull-stream-reader")
        try:
            async for answers in stream.answers():
                yield answers
        finally:
            self._pull_streams.discard(stream)
            reader.cancel()

    async def Read(self, request: broker_pb2.ReadRequest, context: object) -> broker_pb2.ReadReply:
        return await read(self._open(), request)

    async def SendBack(
        self, request: broker_pb2.SendBackRequest, context: object
    ) -> broker_pb2.SendBackReply:
        self._open()
        assert self._send_backs is not None
        return await self._send_backs.send_back(request)

    async def QueueStatus(
        self, request: broker_pb2.QueueStatusRequest, context: object
    ) -> broker_pb2.QueueStatusReply:
        broker = await self._confirmed_leader()
        check_queues(len(request.queues))
        await broker.topics.catch_up(
            [(queue.topic, queue.queue_id) for queue in request.queues], request.route_revision
        )
        return await queue_states(broker, request, self._clock)

    async def SearchOffset(
        self, request: broker_pb2.SearchOffsetRequest, context: object
    ) -> broker_pb2.SearchOffsetReply:
        broker = await self._confirmed_leader()
        check_queues(len(request.queues))
        if request.boundary not in BOUNDARIES:
            raise InvalidArgument(reason=f"{request.boundary} is not a boundary")
        boundary = BOUNDARIES[request.boundary]
        await broker.topics.catch_up(
            [(queue.topic, queue.queue_id) for queue in request.queues], request.route_revision
        )
        reply = broker_pb2.SearchOffsetReply()
        async for queue in in_turns(request.queues, self._clock):
            found = reply.offsets.add(queue=queue)

            def search(key: QueueKey = (queue.topic, queue.queue_id)) -> int:
                broker.topics.served(*key, request.route_revision)
                return broker.store.search_offset(*key, request.timestamp_ms, boundary)

            try:
                found.offset = await cold_reads.answer(search)
            except RockoonError as refusal:
                found.error.CopyFrom(refusal.to_wire())
        return reply

    async def CancelDelayed(
        self, request: broker_pb2.CancelDelayedRequest, context: object
    ) -> broker_pb2.CancelDelayedReply:
        return await cancel_delayed(self._open().pending.delays, request)

    async def ListDelayed(
        self, request: broker_pb2.ListDelayedRequest, context: object
    ) -> broker_pb2.ListDelayedReply:
        return list_delayed(self._open().pending.delays, request, self._clock.now_ms())

    async def EndTransaction(
        self, request: broker_pb2.EndTransactionRequest, context: object
    ) -> broker_pb2.EndTransactionReply:
        return await end_transaction(self._open().pending.transactions, request, self._store_host)

    async def CheckTransactions(
        self, request: broker_pb2.CheckTransactionsRequest, context: object
    ) -> AsyncIterator[broker_pb2.TransactionCheck]:
        async for query in check_transactions(self._open().pending.transactions, request):
            yield query

    async def ListTransactions(
        self, request: broker_pb2.ListTransactionsRequest, context: object
    ) -> broker_pb2.ListTransactionsReply:
        transactions = self._open().pending.transactions
        return list_transactions(transactions, request, self._clock.now_ms())

    async def QueryMessages(
        self, request: broker_pb2.QueryMessagesRequest, context: object
    ) -> broker_pb2.QueryMessagesReply:
        return await query_messages(self._open(), request, self._clock)

    async def ReadLog(  # type: ignore[override]  # as `add_to_server` registers it
        self, request: broker_pb2.ReadLogRequest, context: object
    ) -> list[bytes]:
        broker = await self._confirmed_leader() if request.with_queue_ends else self._open()
        return await read_log(broker, request)

    async def DescribeCompaction(
        self, request: broker_pb2.DescribeCompactionRequest, context: object
    ) -> broker_pb2.DescribeCompactionReply:
        return describe_compaction(self._open(), request, self._clock.now_ms())

    async def ReadGeneration(
        self, request: broker_pb2.ReadGenerationRequest, context: object
    ) -> broker_pb2.ReadGenerationReply:
        return await read_generation(self._open(), request)

    async def PutGenerationFile(
        self, request_iterator: Any, context: object
    ) -> broker_pb2.PutGenerationFileReply:
        return await put_generation_file(self._open(), aiter(request_iterator))

    async def PublishGeneration(
        self, request: broker_pb2.PublishGenerationRequest, context: object
    ) -> broker_pb2.PublishGenerationReply:
        return await publish_generation(self._open(), request)

    async def DiscardGeneration(
        self, request: broker_pb2.DiscardGenerationRequest, context: object
    ) -> broker_pb2.DiscardGenerationReply:
        return await discard_generation(self._open(), request)

    async def ListAppendStreams(
        self, request: broker_pb2.ListAppendStreamsRequest, context: object
    ) -> broker_pb2.ListAppendStreamsReply:
        self._open()
        return append_streams(self._streams, request.topic, self._clock.monotonic_seconds())

    async def DescribeBroker(
        self, request: broker_pb2.DescribeBrokerRequest, context: object
    ) -> broker_pb2.DescribeBrokerReply:
        broker = self._open()
        assert self._send_backs is not None
        reply = describe(broker, self._send_backs)
        reply.pull_subscriptions = self.pull_subscriptions
        return reply

    async def DescribeDrain(
        self, request: broker_pb2.DescribeDrainRequest, context: object
    ) -> broker_pb2.DescribeDrainReply:
        return await describe_drain(self._open())


def check_queues(count: int) -> None:
    if count > QUEUES_PER_CALL_MAX:
        raise InvalidArgument(reason=f"{count} queues, more than {QUEUES_PER_CALL_MAX}")


def describe(broker: Broker, send_backs: SendBacks) -> broker_pb2.DescribeBrokerReply:
    described = _in_numbers(broker)
    described.messages_sent_back = send_backs.messages_returned
    described.messages_dead = send_backs.messages_dead
    described.delayed.CopyFrom(delayed_counts(broker.pending.delays))
    describe_transactions(broker.pending.transactions, described)
    described.compaction.CopyFrom(compaction_state(broker))
    described.problems.extend(problems_of(broker))
    return described


def _in_numbers(broker: Broker) -> broker_pb2.DescribeBrokerReply:
    store, served = broker.store, broker.topics.table.served
    return broker_pb2.DescribeBrokerReply(
        name=broker.settings.name,
        cluster=broker.settings.cluster,
        log_min_offset=store.log_min_offset,
        log_max_offset=store.appended_end,
        log_synced_offset=store.durable_end,
        flush=broker.settings.flush,
        writable=store.writable and not store.write_failure,
        not_writable_reason=store.refusal_reason or store.closed_reason,
        disk_used_ratio=broker.disk_used_ratio,
        topics=len(served),
        queues=sum(topic.queues for topic in served),
        recovery_records_scanned=store.recovery.records_scanned,
        recovery_bytes_scanned=store.recovery.bytes_scanned,
        recovery_seconds=broker.recovery_seconds,
        recovery_was_clean=store.recovery.was_clean,
        route_revision=broker.topics.table.revision,
        messages_appended=broker.appends.messages,
        messages_pulled=broker.pulls.messages,
        bytes_appended=broker.appends.bytes,
        bytes_pulled=broker.pulls.bytes,
        waiting_pulls=broker.waiting_pulls,
        kernel=kernel.name(),
        lost_bytes=store.recovery.lost_bytes,
        index_end_offset=0 if broker.key_index is None else broker.key_index.end_offset,
        clock_ms=wall_clock_ms(),
    )


def problems_of(broker: Broker) -> Iterator[str]:
    """Yield a sentence per problem that makes sends or reads fail, now or soon."""
    store, pending = broker.store, broker.pending
    if reason := store.refusal_reason:
        yield f"it takes no messages: {reason}"
    if store.keeps_all_files:
        yield KEEPS_ALL_FILES
    if store.retention_held_end:
        held_bytes = store.retention_held_end - store.log_min_offset
        yield f"retention keeps {held_bytes} bytes of the log for copies that lack them"
    if store.removal_failure is not None:
        yield f"old files cannot be deleted, retrying: {store.removal_failure}"
    if store.point_failure is not None:
        yield f"no recovery point can be written: {store.point_failure}"
    if broker.topics.change_failure is not None:
        yield f"a change of topics is delayed: {broker.topics.change_failure}"
    if not broker.topics.routes.following:
        yield "no connected nameserver reaches etcd: changes of topics do not arrive"
    if broker.key_index is not None and broker.key_index.failure is not None:
        yield f"indexing by key is interrupted by the disk: {broker.key_index.failure}"
    if (failure := pending.delays.delivery.work.failure) is not None and store.writable:
        yield f"delayed messages are not delivered: {failure}"
    for damage in broker.pulls.recent_damage():
        yield f"readers found damage in {damage.path}: {damage.reason}"


async def describe_drain(broker: Broker) -> broker_pb2.DescribeDrainReply:
    """Return the messages of a broker that readers, delays and transactions still need.

    Consumers return failed messages before they commit, and due messages move from one number to
    the other; both append to the log. So the numbers are of one moment if the log has not grown.
    """
    store, pending = broker.store, broker.pending
    end = store.appended_end
    reading = await broker.unread.reading(end)
    topics = Counter[str]()
    for topic, queue_id in store.queues():
        if not is_system_topic(topic) or topic == GIVEN_UP.name:
            topics[topic] += store.max_offset(topic, queue_id) - store.min_offset(topic, queue_id)
    served = broker.topics.table.topics
    return broker_pb2.DescribeDrainReply(
        drained=broker.settings.drained,
        closed=store.closed_reason == DRAINED,
        settled=store.appended_end == end == store.visible_end,
        unread_messages=reading.messages,
        unread=[
            broker_pb2.UnreadByReader(reader=each.group, queue=each.queue, messages=each.messages)
            for each in reading.unread
        ],
        unknown_because=reading.unknown_because,
        delayed=len(pending.delays),
        transactions=len(pending.transactions),
        topics=[
            broker_pb2.StoredMessages(
                topic=topic,
                messages=count,
                compacted=topic in served and served[topic].compacted,
            )
            for topic, count in sorted(topics.items())
            if count > 0
        ],
    )
