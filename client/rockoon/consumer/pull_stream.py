"""Pull streams: one call to each broker brings what a consumer reads there, of all its queues.

A queue is subscribed from an offset on and given credit, batches come as they are stored, and what
becomes of it is told of it alone. Credit is what bounds memory here: as much as one pull may bring,
given anew while the consumer has room, so that a queue with a slow handler holds up no other one.
A stream that breaks ends its subscriptions, and each queue subscribes again.
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
from rockoon_core.failed_call import clock_corrected, from_rpc_error
from rockoon_core.repeated_lines import limited
from rockoon_proto.v1.broker_pb2 import (
    PullReply,
    PullRequest,
    PullStreamReply,
    PullStreamRequest,
)
from rockoon_proto.v1.nameserver_pb2 import Node
from rockoon_rpc.client_call import StreamCall

log = limited(logging.getLogger(__name__))

# A broker sends something, be it nothing, every ten seconds.
SILENT_SECONDS_MAX = 25.0
LOOK_SECONDS = 5.0


class NoPullStreams(Exception):
    """The broker's version has none: its queues are pulled call by call."""


class QueueSubscription:
    """One queue of a stream, from an offset on; used by one task.

    Attributes:
        position: offset of the next message that `answer` may bring. Written by who reads.
        is_over: nothing more comes.
        taker: is offered each answer that comes while `answer` waits for one, where it comes: a
            wakeup less. What it returns True for is dealt with, and there is room for as much as
            one pull may bring still; `answer` brings the others. It must not raise.
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
        "position",
        "taker",
    )

    def __init__(self, stream: "PullStream", number: int, request: PullRequest) -> None:
        self.position = request.offset
        self.is_over = False
        self.taker: Callable[[Reply], bool] | None = None
        self._number = number
        self._stream = stream
        self._messages_max, self._bytes_max = request.max_messages, request.max_bytes
        # More credit is given when half is used. If each message gave credit, it would cost two
        # messages on the stream.
        self._messages_low, self._bytes_low = self._messages_max // 2, self._bytes_max // 2
        # Credit that was given, but for what was taken by `answer` since.
        self._messages = self._bytes = 0
        # What has come and was not taken; the credit bounds it.
        self._answers: deque[Reply] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._failure: Exception | None = None

    @property
    def heard_at(self) -> float:
        """When the broker was heard of last, loop time."""
        return self._stream.heard_at

    async def answer(self) -> Reply:
        """The next answer. Called when there is room for as much as one pull may bring; cancelling
        it is safe.

        Raises:
            NoPullStreams: the queue has to be pulled.
            RockoonError: what the broker says of the queue, or why the stream has ended.
        """
        if self._messages <= self._messages_low or self._bytes <= self._bytes_low:
            self._give_credit()
        while not self._answers:
            if self._failure is not None:
                self.is_over = True
                # Many queues raise the same one.
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
        # Not of `frames`: each look at those copies them.
        self._bytes -= int.from_bytes(lengths, "little") if len(lengths) == 4 else _sum(lengths)

    def _give_credit(self) -> None:
        messages, size = self._messages_max - self._messages, self._bytes_max - self._bytes
        self._messages, self._bytes = self._messages_max, self._bytes_max
        self._stream.requests.give_credit(self._number, messages, size)

    def end(self) -> None:
        """Have nothing more come."""
        self.is_over = True
        self._stream.unsubscribe(self._number)

    def take(self, reply: Reply, *, has_company: bool) -> None:
        """Something has come; `has_company`: in a message with answers of other queues."""
        is_awaited = not (self._waiter is None or self._waiter.done() or self._answers)
        if is_awaited and self.taker is not None and self.taker(reply):
            self._use_credit(reply.record_lengths)
            if self._messages <= self._messages_low or self._bytes <= self._bytes_low:
                self._give_credit()
            return
        if has_company and isinstance(reply, PullReply) and not is_awaited:
            # What is not taken at once must not keep the whole message, with other queues' records,
            # in memory.
            own = PullReply()
            own.CopyFrom(reply)
            reply = own
        self._answers.append(reply)
        self._wake()

    def fail(self, failure: Exception) -> None:
        """Nothing more comes; what has come is still given out."""
        self._failure = failure
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _sum(lengths: bytes) -> int:
    return int(np.frombuffer(lengths, "<u4").sum(dtype=np.int64))


class StreamRequests:
    """What is to be told to a broker, gathered until the transport takes it."""

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
        """No more is to be told."""
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
        cluster: the connection.
        broker: its name.
        node: the process that it goes to.

    Attributes:
        node: as given.
        requests: what goes out.
        heard_at: when anything came last, loop time; -inf before that.
        is_over: it takes no subscriptions any more.
        is_known: False when the broker knows no streams.
    """

    def __init__(self, cluster: Connection, broker: str, node: Node) -> None:
        self.node = node
        self.requests = StreamRequests()
        self.heard_at = float("-inf")
        self.is_over = False
        self.is_known = True
        self._cluster = cluster
        self._broker = broker
        self._subscriptions: dict[int, QueueSubscription] = {}
        self._last_number = 0
        self._loop = asyncio.get_running_loop()
        self._watching: asyncio.TimerHandle | None = None
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
            log.exception("the pull stream to %s fails in a way no one foresaw", self._broker)
            failure = RockoonError(f"the pull stream to {self._broker} failed: {error!r}")
        finally:
            self.is_over = True
            # The transport would wait for more, and nobody else would end that.
            self.requests.finish()
            for subscription in self._subscriptions.values():
                subscription.fail(failure)

    async def _receive(self) -> Exception:
        """Take answers until the stream ends; returns why it did."""
        cluster, broker = self._cluster, self._broker
        try:
            stub = cluster.broker(broker)
        except RockoonError as error:
            return error
        call = stub.PullStream(self.requests, metadata=cluster.metadata)
        self._watch(call, asyncio.get_running_loop().time())
        if isinstance(call, StreamCall):
            call.on_message = self._take
        try:
            with cluster.followed(call, broker):
                async for reply in call:
                    self._take(reply)
        except RpcError as failure:
            return self._why(failure)
        except aio.UsageError:
            # The channel was closed under the call.
            return Closed(what="the connection to the cluster")
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
        finally:
            if self._watching is not None:
                self._watching.cancel()
            call.cancel()
        return BrokerUnavailable(broker=broker)

    def _take(self, reply: PullStreamReply | Replies) -> bool:
        """Give answers to those who wait for them."""
        self.heard_at = self._loop.time()
        has_company = len(reply.answers) > 1
        for answer in reply.answers:
            subscription = self._subscriptions.get(answer.subscription_id)
            if subscription is not None:
                subscription.take(answer, has_company=has_company)
        return True

    def _why(self, failure: RpcError) -> Exception:
        if isinstance(failure, aio.AioRpcError) and failure.code() is StatusCode.UNIMPLEMENTED:
            self.is_known = False
            return NoPullStreams()
        error = from_rpc_error(failure, BrokerUnavailable, broker=self._broker)
        if clock_corrected(self._cluster.access, error):
            # The next one is signed by another clock.
            return BrokerUnavailable(broker=self._broker)
        return error

    def _watch(
        self, call: "aio.StreamStreamCall[PullStreamRequest, PullStreamReply]", began_at: float
    ) -> None:
        """End a call whose broker is silent, or of which nobody has wanted anything for a while."""
        loop = asyncio.get_running_loop()
        silent_seconds = loop.time() - max(self.heard_at, began_at)
        if silent_seconds > SILENT_SECONDS_MAX or not self._subscriptions:
            # From now on: its end is noticed a turn of the loop later.
            self.is_over = True
            call.cancel()
        else:
            self._watching = loop.call_later(LOOK_SECONDS, self._watch, call, began_at)


class PullStreams:
    """The pull streams of one consumer.

    Args:
        cluster: the connection, whose task group the streams' tasks are in.
    """

    def __init__(self, cluster: Connection) -> None:
        self._cluster = cluster
        self._streams: dict[str, PullStream] = {}

    def subscribe(self, broker: str, request: PullRequest) -> QueueSubscription | None:
        """Read a queue; None when its broker is known to have no streams.

        Raises:
            BrokerUnavailable: the broker is not in the routes at the moment.
        """
        node = self._cluster.routes.broker(broker)
        if node is None:
            raise BrokerUnavailable(broker=broker)
        stream = self._streams.get(broker)
        # Another process in its place may be of another version.
        if stream is not None and not stream.is_known and stream.node == node:
            return None
        if stream is None or stream.is_over:
            stream = self._streams[broker] = PullStream(self._cluster, broker, node)
        return stream.subscribe(request)

    def close(self) -> None:
        """End all of them."""
        for stream in self._streams.values():
            stream.task.cancel()
        self._streams.clear()
