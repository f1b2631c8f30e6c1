"""Pull streams: one call per broker delivers the messages of all queues that a consumer reads.

A reader subscribes to a queue from an offset and grants credit to the broker, which sends batches
as they are stored. An error of a queue ends the subscription of this queue only. Credit bounds the
memory of a queue to the size of one pull. The reader renews it while it has room, so a queue with a
slow handler does not block other queues. If a stream breaks, its subscriptions end, and each reader
subscribes again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

import numpy as np
from grpc import RpcError, StatusCode, aio

from rockoon.errors import BrokerUnavailable, Closed, RockoonError
from rockoon.net.connection import Connection
from rockoon.net.large_replies import Replies, Reply, refusal_of
from rockoon_core.errors import from_wire
from rockoon_core.failed_call import from_rpc_error, may_sign_again
from rockoon_core.repeated_lines import limited
from rockoon_proto.v1.broker_pb2 import PullReply, PullRequest, PullStreamReply, PullStreamRequest
from rockoon_proto.v1.nameserver_pb2 import Node
from rockoon_rpc.client_call import StreamCall

log = limited(logging.getLogger(__name__))

# A broker sends a message at least every five seconds, which may be empty.
SILENT_SECONDS_MAX = 25.0
CHECK_SECONDS = 5.0


class NoPullStreams(Exception):
    """The broker's version has no pull streams: each pull of its queues is a call."""


class QueueSubscription:
    """Subscription to one queue on a stream, from an offset on; used by one task.

    Attributes:
        position: offset of the next message that `answer` may return. Written by the reader.
        is_over: the broker sends no more replies.
        on_reply: called with each reply that arrives while `answer` waits, in the receive callback,
            which saves a wakeup. If it returns True, the reply is handled and there is room for
            another pull; otherwise `answer` returns the reply. It must not raise.
    """

    __slots__ = (
        "_answers",
        "_bytes",
        "_bytes_low",
        "_bytes_max",
        "_failure",
        "_messages",
        "_messages_low",
        "_messages_max",
        "_number",
        "_stream",
        "_waiter",
        "is_over",
        "on_reply",
        "position",
    )

    def __init__(self, stream: "PullStream", number: int, request: PullRequest) -> None:
        self.position = request.offset
        self.is_over = False
        self.on_reply: Callable[[Reply], bool] | None = None
        self._number = number
        self._stream = stream
        self._messages_max, self._bytes_max = request.max_messages, request.max_bytes
        # Credit is renewed when half is used: renewing it for each message would double the
        # messages on the stream.
        self._messages_low, self._bytes_low = self._messages_max // 2, self._bytes_max // 2
        # Credit left, without replies that are not handled yet.
        self._messages = self._bytes = 0
        # Replies that are not handled yet; the credit bounds them.
        self._answers: deque[Reply] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._failure: Exception | None = None

    @property
    def heard_at(self) -> float:
        """Loop time of the broker's last message."""
        return self._stream.heard_at

    async def answer(self) -> Reply:
        """Wait for the next reply. The caller has room for one pull. Cancelling it is safe. Raises
        NoPullStreams: the broker has no pull streams; RockoonError: error of the queue, or of the
        stream."""
        if self._messages <= self._messages_low or self._bytes <= self._bytes_low:
            self._give_credit()
        while not self._answers:
            if self._failure is not None:
                self.is_over = True
                # Many queues raise the same object, which must not collect tracebacks.
                raise self._failure.with_traceback(None)
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        reply = self._answers.popleft()
        self._use_credit(reply.record_lengths)
        if reply.ended:
            self.is_over = True
        refusal = refusal_of(reply)
        if refusal is not None:
            raise from_wire(refusal)
        return reply

    def _use_credit(self, lengths: bytes) -> None:
        self._messages -= len(lengths) // 4
        # From the lengths, because each access to `frames` copies them.
        self._bytes -= int.from_bytes(lengths, "little") if len(lengths) == 4 else _sum(lengths)

    def _give_credit(self) -> None:
        messages, size = self._messages_max - self._messages, self._bytes_max - self._bytes
        self._messages, self._bytes = self._messages_max, self._bytes_max
        self._stream.requests.give_credit(self._number, messages, size)

    def end(self) -> None:
        self.is_over = True
        self._stream.unsubscribe(self._number)

    def receive(self, reply: Reply, *, shares_message: bool) -> None:
        """Handle a reply; `shares_message`: its message has replies of other queues."""
        is_awaited = not (self._waiter is None or self._waiter.done() or self._answers)
        if is_awaited and self.on_reply is not None and self.on_reply(reply):
            self._use_credit(reply.record_lengths)
            if self._messages <= self._messages_low or self._bytes <= self._bytes_low:
                self._give_credit()
            return
        if shares_message and isinstance(reply, PullReply) and not is_awaited:
            # Copied, because a reply that waits would keep the whole message with the records of
            # other queues in memory.
            own = PullReply()
            own.CopyFrom(reply)
            reply = own
        self._answers.append(reply)
        self._wake()

    def fail(self, failure: Exception) -> None:
        """Fail `answer` after the replies that have arrived."""
        self._failure = failure
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _sum(lengths: bytes) -> int:
    return int(np.frombuffer(lengths, "<u4").sum(dtype=np.int64))


class StreamRequests:
    """Requests of a stream, combined until the transport sends them."""

    def __init__(self) -> None:
        self._next: PullStreamRequest | None = None
        self._wanted = asyncio.Event()
        self._is_finished = False

    def subscribe(self, number: int, pull: PullRequest) -> None:
        self._pending().subscribe.add(id=number, pull=pull)

    def give_credit(self, number: int, messages: int, size: int) -> None:
        self._pending().credit.add(id=number, messages=messages, bytes=size)

    def unsubscribe(self, number: int) -> None:
        self._pending().unsubscribe.append(number)

    def finish(self) -> None:
        self._is_finished = True
        self._wanted.set()

    def _pending(self) -> PullStreamRequest:
        if self._next is None:
            self._next = PullStreamRequest()
            self._wanted.set()
        return self._next

    def __aiter__(self) -> "StreamRequests":
        return self

    async def __anext__(self) -> PullStreamRequest:
        while self._next is None or self._is_finished:
            if self._is_finished:
                raise StopAsyncIteration
            self._wanted.clear()
            await self._wanted.wait()
        request, self._next = self._next, None
        return request


class PullStream:
    """The stream to one broker.

    Args:
        node: process of the broker.

    Attributes:
        node: process of the broker.
        requests: requests of the stream.
        heard_at: loop time of the broker's last message; -inf before the first.
        is_over: it accepts no subscriptions.
        is_supported: False if the broker has no pull streams.
    """

    def __init__(self, cluster: Connection, broker: str, node: Node) -> None:
        self.node = node
        self.requests = StreamRequests()
        self.heard_at = float("-inf")
        self.is_over = False
        self.is_supported = True
        self._cluster = cluster
        self._broker = broker
        self._subscriptions: dict[int, QueueSubscription] = {}
        self._last_number = 0
        self._loop = asyncio.get_running_loop()
        self._silence_timer: asyncio.TimerHandle | None = None
        self.task = cluster.tasks.create_task(self._run(), name=f"rockoon pull stream {broker}")

    def subscribe(self, request: PullRequest) -> QueueSubscription:
        self._last_number += 1
        number = self._last_number
        subscription = self._subscriptions[number] = QueueSubscription(self, number, request)
        self.requests.subscribe(number, request)
        return subscription

    def unsubscribe(self, number: int) -> None:
        if self._subscriptions.pop(number, None) is not None:
            self.requests.unsubscribe(number)

    async def _run(self) -> None:
        failure: Exception = BrokerUnavailable(broker=self._broker)
        try:
            failure = await self._receive()
        except Exception as error:
            log.exception("unexpected error in the pull stream to %s (bug)", self._broker)
            failure = RockoonError(f"the pull stream to {self._broker} failed (bug): {error!r}")
        finally:
            self.is_over = True
            # The transport waits for requests until they are finished here.
            self.requests.finish()
            for subscription in self._subscriptions.values():
                subscription.fail(failure)

    async def _receive(self) -> Exception:
        """Receive replies until the stream ends; return the error that ended it."""
        cluster, broker = self._cluster, self._broker
        try:
            stub = cluster.broker(broker)
        except RockoonError as error:
            return error
        call = stub.PullStream(self.requests, metadata=cluster.metadata)
        self._check_silence(call, asyncio.get_running_loop().time())
        if isinstance(call, StreamCall):
            call.on_message = self._on_message
        try:
            with cluster.followed(call, broker):
                async for reply in call:
                    self._on_message(reply)
        except RpcError as failure:
            return self._error_of(failure)
        except aio.UsageError:
            # The channel was closed under the call.
            return Closed(what="the connection to the cluster")
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
        finally:
            if self._silence_timer is not None:
                self._silence_timer.cancel()
            call.cancel()
        return BrokerUnavailable(broker=broker)

    def _on_message(self, reply: PullStreamReply | Replies) -> bool:
        """Dispatch the replies of a message to their subscriptions."""
        self.heard_at = self._loop.time()
        shares_message = len(reply.answers) > 1
        for answer in reply.answers:
            subscription = self._subscriptions.get(answer.subscription_id)
            if subscription is not None:
                subscription.receive(answer, shares_message=shares_message)
        return True

    def _error_of(self, failure: RpcError) -> Exception:
        if isinstance(failure, aio.AioRpcError) and failure.code() is StatusCode.UNIMPLEMENTED:
            self.is_supported = False
            return NoPullStreams()
        error = from_rpc_error(failure, BrokerUnavailable, broker=self._broker)
        if may_sign_again(self._cluster.access, error):
            # The next call is signed with the corrected clock.
            return BrokerUnavailable(broker=self._broker)
        return error

    def _check_silence(
        self, call: "aio.StreamStreamCall[PullStreamRequest, PullStreamReply]", began_at: float
    ) -> None:
        """End a call if its broker is silent or no queue is subscribed."""
        loop = asyncio.get_running_loop()
        silent_seconds = loop.time() - max(self.heard_at, began_at)
        if silent_seconds > SILENT_SECONDS_MAX or not self._subscriptions:
            # Set now, because the call ends one loop iteration later.
            self.is_over = True
            call.cancel()
        else:
            self._silence_timer = loop.call_later(
                CHECK_SECONDS, self._check_silence, call, began_at
            )


class PullStreams:
    """The pull streams of one consumer. `cluster`: the connection; its task group has the tasks of
    the streams."""

    def __init__(self, cluster: Connection) -> None:
        self._cluster = cluster
        self._streams: dict[str, PullStream] = {}

    def subscribe(self, broker: str, request: PullRequest) -> QueueSubscription | None:
        """Subscribe to a queue; return None if its broker is known to have no pull streams. Raises
        BrokerUnavailable: the broker is not in the routes."""
        node = self._cluster.routes.broker(broker)
        if node is None:
            raise BrokerUnavailable(broker=broker)
        stream = self._streams.get(broker)
        # Another process of the broker may have another version.
        if stream is not None and not stream.is_supported and stream.node == node:
            return None
        if stream is None or stream.is_over:
            stream = self._streams[broker] = PullStream(self._cluster, broker, node)
        return stream.subscribe(request)

    def close(self) -> None:
        for stream in self._streams.values():
            stream.task.cancel()
        self._streams.clear()
