"""The SDK without asyncio: blocking calls that run in an event loop in a separate thread.

    with rockoon.sync.connect("127.0.0.1:9876") as cluster:
        cluster.send("orders", b"one")
        for message in cluster.consume("orders", timeout=1.0):
            print(message.body)

Every call blocks until it is done and may be made from any thread. To send many messages, use
`send_many` or the asyncio SDK, which are much faster than single `send` calls.
"""

import asyncio
import socket
import threading
import time
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, overload

from rockoon import cluster as aio_cluster
from rockoon.errors import Closed
from rockoon.message import SendResult
from rockoon.net.access import AccessKey
from rockoon.net.addresses import parse_addresses
from rockoon.net.connection import CONNECT_SECONDS_MAX, RETRY_SECONDS
from rockoon.net.forks import watch_forks
from rockoon.net.routes import TopicRoute
from rockoon.net.tls import Tls
from rockoon.producer.body_feed import Bodies, BodyFeed
from rockoon.producer.options import (
    ProducerOptions,
    SendManyOptions,
    SendOptions,
    TransactionalProducerOptions,
    rename_key,
)
from rockoon.producer.outgoing import Body
from rockoon.producer.receipt import SendResults
from rockoon_core.message_queue import MessageQueue

if TYPE_CHECKING:
    from rockoon.admin.admin import Admin
    from rockoon.consumer.blocking import BlockingPushConsumer, BlockingSimpleConsumer
    from rockoon.consumer.delivery import BatchHandler, MessageHandler
    from rockoon.consumer.options import PushOptions, ReadOptions
    from rockoon.consumer.pull_consumer import PullConsumer
    from rockoon.hooks import Hooks
    from rockoon.message import Message
    from rockoon.offsets.start import ConsumeFrom, StartName
    from rockoon.producer.producer import Producer
    from rockoon.receiving.simple_consumer import SimpleConsumer
    from rockoon.subscription import MissingTopicsRule
    from rockoon.transactions.blocking import BlockingTransactionalProducer
    from rockoon.transactions.producer import TransactionalProducer
    from rockoon.transactions.transaction import Check

# Maximum length of one poll in the loop, so that Ctrl-C is noticed in time.
POLL_SECONDS = 0.5
# Parallel host name lookups.
LOOKUPS_MAX = 4

Result = TypeVar("Result")


def connect(
    nameservers: str | Sequence[str],
    *,
    cluster: str | None = None,
    client_id: str | None = None,
    connect_seconds_max: float = CONNECT_SECONDS_MAX,
    retry_seconds: float = RETRY_SECONDS,
    tls: Tls | None = None,
    access: AccessKey | None = None,
    tracing: "Hooks | None" = None,
    **producer_settings: Unpack[ProducerOptions],
) -> "Cluster":
    """Return a cluster, to be used as `with connect("127.0.0.1:9876") as cluster:`.

    Args:
        nameservers, cluster, client_id, connect_seconds_max, retry_seconds, tls, access, tracing:
            as in `rockoon.connect`.
        producer_settings: for `send` and `send_many`; see `rockoon.producer.settings`.

    Raises:
        InvalidArgument: as `rockoon.connect`.
    """
    addresses = parse_addresses(nameservers)
    return Cluster(
        lambda: aio_cluster.connect(
            addresses,
            cluster=cluster,
            client_id=client_id,
            connect_seconds_max=connect_seconds_max,
            retry_seconds=retry_seconds,
            tls=tls,
            access=access,
            tracing=tracing,
        ),
        producer_settings,
    )


class Cluster:
    """A connection to a cluster for blocking code.

    Raises:
        NameserverUnavailable, WrongCluster, TlsFailed, NotAuthenticated: on entering the context,
            as `rockoon.Cluster`.
    """

    def __init__(
        self, make: Callable[[], aio_cluster.Cluster], producer_settings: ProducerOptions
    ) -> None:
        self._make = make
        self._producer_settings = producer_settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        # Written only by the loop's thread, between enter and exit.
        self._cluster: aio_cluster.Cluster | None = None
        self._producer: Producer | None = None
        self._ended: asyncio.Event | None = None
        # Why the thread ended before the context was left.
        self._failures: list[BaseException] = []
        # Set in a forked child of the process that opened the connection: the error of every call.
        self._refused_in_child: str | None = None

    def __enter__(self) -> Self:
        entered: threading.Event = threading.Event()
        self._failures, self._refused_in_child = [], None
        self._loop = _new_loop()
        self._thread = threading.Thread(
            target=self._run, args=(self._loop, entered), name="rockoon", daemon=True
        )
        self._thread.start()
        entered.wait()
        if self._failures:
            self._thread.join()
            raise self._failures[0]
        watch_forks(self)
        return self

    def refuse_in_child(self, reason: str) -> None:
        """As `Forkable.refuse_in_child`."""
        self._refused_in_child = reason
        self._loop = self._cluster = self._producer = None

    def __exit__(self, _kind: object, failure: BaseException | None, _trace: object) -> None:
        if self._refused_in_child is not None:
            return  # the loop's thread runs in the parent only
        loop, thread, ended = self._loop, self._thread, self._ended
        assert loop is not None
        assert thread is not None
        assert ended is not None
        with suppress(RuntimeError):  # the loop has ended already
            loop.call_soon_threadsafe(ended.set)
        thread.join()
        self._loop = None
        # An exception of the body is raised instead; the two may be related.
        if failure is None and self._failures:
            raise self._failures[0]

    def _run(
        self,
        loop: asyncio.AbstractEventLoop,
        entered: threading.Event,
    ) -> None:
        async def run_connection() -> None:
            self._ended = asyncio.Event()
            try:
                async with self._make() as cluster:
                    self._cluster = cluster
                    entered.set()
                    await self._ended.wait()
            finally:
                self._cluster = self._producer = None

        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            try:
                runner.run(run_connection())
            except BaseException as failure:  # noqa: BLE001 - the caller raises it
                self._failures.append(failure)
                entered.set()

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine of the asyncio SDK in the event loop and return its result.

        Raises:
            Closed: called outside the `with` block; `__cause__` is the failure of the connection.
            RuntimeError: called in the event loop's thread, which would wait for itself.
        """
        return self._result(self._submit(work))

    def call_close(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that closes a producer or consumer, as `call`. No effect in a forked
        child, which may leave its parent's `with` blocks through `sys.exit`."""
        if self._refused_in_child is None:
            self.call(work)
        else:
            work.close()

    def call_soon(self, function: Callable[[], object]) -> None:
        """Schedule a function in the loop's thread without waiting for it; usable in signal
        handlers. No effect after the connection is closed."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(function)

    def _submit(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        if self._loop is None or self._failures:
            work.close()
            raise self._closed()
        if self._is_own_thread():
            work.close()
            raise RuntimeError("a blocking call on the connection's own event loop")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _result(self, future: Future[Result]) -> Result:
        try:
            return future.result()
        except CancelledError:
            raise self._closed()  # noqa: B904 - `_closed` sets the cause
        except KeyboardInterrupt:
            future.cancel()
            raise

    @property
    def asyncio(self) -> aio_cluster.Cluster:
        """The asyncio connection, for use with `call`."""
        if self._cluster is None:
            raise self._closed()
        return self._cluster

    @property
    def admin(self) -> "Admin":
        """The asyncio administration, for use with `call`."""
        return self.asyncio.admin

    def send(self, topic: str, body: Body, **options: Unpack[SendOptions]) -> SendResult:
        """Send a message and wait until it is stored; options as in `Producer.send`.

        Raises:
            RockoonError: as `Producer.send` and its receipt.
        """
        rename_key(options)

        async def send() -> SendResult:
            return await self._open_producer().send(topic, body, **options)

        return self.call(send())

    def send_many(
        self, topic: str, bodies: Iterable[Body], **options: Unpack[SendManyOptions]
    ) -> SendResults:
        """Send many messages and wait until all are stored, as `Producer.send_many`.

        The iterable and `keys` are read in the caller's thread, at most a few thousand messages and
        1 MiB ahead of sending. Their exceptions end the call.

        Raises:
            RockoonError: as `Producer.send_many`.
        """
        rename_key(options)
        keys, loop = options.get("keys"), self._loop
        is_sequence = isinstance(bodies, list | tuple) and (keys is None or isinstance(keys, list))
        if is_sequence or loop is None:
            return self.call(self._send_many(topic, bodies, options))
        feed = BodyFeed(loop, bodies, keys)
        options["keys"] = feed.keys

        async def send() -> SendResults:
            try:
                return await self._send_many(topic, feed, options)
            finally:
                feed.stop()

        future = self._submit(send())
        try:
            feed.read()
        except BaseException:
            future.cancel()
            raise
        return self._result(future)

    async def _send_many(self, topic: str, bodies: Bodies, options: SendManyOptions) -> SendResults:
        return await self._open_producer().send_many(topic, bodies, **options)

    def transactional_producer(
        self,
        group: str,
        *,
        check: "Check",
        **options: Unpack[TransactionalProducerOptions],
    ) -> "BlockingTransactionalProducer":
        """Return a transactional producer, as `rockoon.Cluster.transactional_producer`.

        Raises:
            InvalidArgument: as `TransactionalProducer`.
        """
        from rockoon.transactions.blocking import BlockingTransactionalProducer

        async def make() -> "TransactionalProducer":
            return self.asyncio.transactional_producer(group, check=check, **options)

        return BlockingTransactionalProducer(self, self.call(make()))

    @overload
    def push_consumer(
        self,
        group: str,
        subscriptions: Mapping[str, str],
        handler: "MessageHandler",
        *,
        batch_max: Literal[1] = 1,
        **options: Unpack["PushOptions"],
    ) -> "BlockingPushConsumer": ...

    @overload
    def push_consumer(
        self,
        group: str,
        subscriptions: Mapping[str, str],
        handler: "BatchHandler",
        *,
        batch_max: int,
        **options: Unpack["PushOptions"],
    ) -> "BlockingPushConsumer": ...

    def push_consumer(
        self,
        group: str,
        subscriptions: Mapping[str, str],
        handler: "MessageHandler | BatchHandler",
        *,
        batch_max: int = 1,
        **options: Unpack["PushOptions"],
    ) -> "BlockingPushConsumer":
        """Return a consumer that calls a handler in threads, as `rockoon.Cluster.push_consumer`.

        A plain handler may block and may use this connection. An async handler, `on_assigned` and
        `on_revoked` run in the connection's event loop, where a blocking call of this connection
        raises RuntimeError.

        Raises:
            InvalidArgument, InvalidExpression: an argument is invalid.
        """
        from rockoon.consumer.blocking import BlockingPushConsumer
        from rockoon.consumer.push_consumer import PushConsumer

        async def make() -> PushConsumer:
            return PushConsumer(
                self.asyncio, group, subscriptions, handler, batch_max=batch_max, **options
            )

        return BlockingPushConsumer(self, self.call(make()))

    def simple_consumer(
        self,
        group: str,
        subscriptions: Mapping[str, str],
        *,
        consume_from: "ConsumeFrom | StartName" = "group",
        receiver: str = "",
        create_group: bool = True,
        extend_seconds_max: float = 900.0,
        missing_topics: "MissingTopicsRule" = "wait",
    ) -> "BlockingSimpleConsumer":
        """Return a consumer that receives and acknowledges messages one by one, as
        `rockoon.Cluster.simple_consumer`.

        Raises:
            InvalidArgument, InvalidExpression: the subscriptions are invalid.
        """
        from rockoon.consumer.blocking import BlockingSimpleConsumer

        async def make() -> "SimpleConsumer":
            return self.asyncio.simple_consumer(
                group,
                subscriptions,
                consume_from=consume_from,
                receiver=receiver,
                create_group=create_group,
                extend_seconds_max=extend_seconds_max,
                missing_topics=missing_topics,
            )

        return BlockingSimpleConsumer(self, self.call(make()))

    def consume(
        self,
        topic: str,
        expression: str = "*",
        *,
        timeout: float | None = None,
        consume_from: "ConsumeFrom | StartName" = "first",
        **options: Unpack["ReadOptions"],
    ) -> "Iterator[Message]":
        """Iterate over the messages of all queues of a topic, including queues added later.

        Reading starts with the first `next` and ends when the iterator is closed. No progress is
        stored. To share the work in a group, use a `simple_consumer`.

        Args:
            expression: tags, as "new || paid", or an `Sql`.
            timeout: stop after this many seconds without a message; None means never.
            consume_from: start position: "first", "last" or a `ConsumeFrom`.
            options: on_out_of_range, limits, prefetch_batches, check_crcs, missing_topics: see
                `PullConsumer`.

        Raises:
            TopicNotFound, InvalidArgument: on the first `next`.
            RockoonError: as `PullConsumer.poll`.
        """

        async def open_consumer() -> "PullConsumer":
            consumer = self.asyncio.pull_consumer(consume_from=consume_from, **options)
            try:
                await consumer.assign_all(topic, expression)
            except BaseException:
                await consumer.close()
                raise
            return consumer

        consumer = self.call(open_consumer())
        try:
            quiet_since = time.monotonic()
            while True:
                left = POLL_SECONDS
                if timeout is not None:
                    left = min(left, quiet_since + timeout - time.monotonic())
                messages = self.call(consumer.poll(timeout=max(left, 0.0)))
                if messages:
                    yield from messages
                    # Time spent by the caller does not count.
                    quiet_since = time.monotonic()
                elif timeout is not None and time.monotonic() >= quiet_since + timeout:
                    return
        finally:
            # The garbage collector may run this in the loop's thread, which cannot wait. The
            # connection closes the consumer in that case.
            if self._loop is not None and not self._is_own_thread():
                self.call(consumer.close())

    def route(self, topic: str) -> TopicRoute:
        """Return a topic's route.

        Raises:
            TopicNotFound: the topic does not exist.
        """
        return self.call(self.asyncio.route(topic))

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return a topic's queues, sorted.

        Raises:
            TopicNotFound: the topic does not exist.
        """
        return self.route(topic).queues

    @contextmanager
    def iterate(self, source: AsyncIterator[Result]) -> Iterator[Iterator[Result]]:
        """Iterate over an async iterator of the SDK, for example a pull consumer."""

        async def following() -> tuple[bool, Any]:
            try:
                return True, await anext(source)
            except StopAsyncIteration:
                return False, None

        def items() -> Iterator[Result]:
            while True:
                found, item = self.call(following())
                if not found:
                    return
                yield item

        yield items()

    def _closed(self) -> Closed:
        if self._refused_in_child is not None:
            return Closed(self._refused_in_child)
        closed = Closed(what="the connection to the cluster")
        closed.__cause__ = next(iter(self._failures), None)
        return closed

    def _is_own_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def _open_producer(self) -> "Producer":
        if self._producer is None:
            self._producer = self.asyncio.producer(**self._producer_settings)
        return self._producer


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # uvloop does not support Windows
        loop = asyncio.new_event_loop()
    else:
        loop = _with_own_lookup(uvloop.Loop)()
    loop.set_exception_handler(_report)
    return loop


def _with_own_lookup(base: type[asyncio.AbstractEventLoop]) -> type[asyncio.AbstractEventLoop]:
    """Return an event loop class that resolves host names in Python threads.

    uvloop resolves them in threads of libuv. A forked child would then crash at its normal exit,
    because libuv joins threads that exist only in the parent.
    """

    class Loop(base):  # type: ignore[valid-type, misc]
        async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
            resolve = partial(socket.getaddrinfo, host, port, **options)
            # A separate pool: transaction checks may occupy the loop's default pool.
            if not hasattr(self, "_lookups"):
                self._lookups = ThreadPoolExecutor(LOOKUPS_MAX, "rockoon-names")
            return await self.run_in_executor(self._lookups, resolve)

    return Loop


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report an error of an event loop, except gRPC's errors for a loop that has ended.

    gRPC has one event queue for all loops of a process; any loop may dispatch another's events.
    """
    is_late = isinstance(context.get("exception"), RuntimeError) and (
        "PollerCompletionQueue" in str(context.get("message"))
    )
    if not is_late:
        loop.default_exception_handler(context)
