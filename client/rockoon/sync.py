"""The SDK without asyncio: blocking calls that run in an event loop in a separate thread.

    with rockoon.sync.connect("127.0.0.1:9876") as cluster:
        cluster.send("orders", b"one")
        for message in cluster.consume("orders", timeout=1.0):
            print(message.body)

Every call blocks until it is done and may be made from any thread. To send many messages, use
`send_many` or the asyncio SDK, which are much faster than single `send` calls.
"""

import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, overload

from rockoon import cluster as aio_cluster
from rockoon.message import SendResult
from rockoon.net.access import AccessKey
from rockoon.net.addresses import parse_addresses
from rockoon.net.blocking import BlockingConnection
from rockoon.net.connection import CONNECT_SECONDS_MAX, RETRY_SECONDS
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
    from rockoon.consumer.pull_consumer import PullConsumer, ReadOptions
    from rockoon.consumer.push_consumer import PushOptions
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


class Cluster(BlockingConnection[aio_cluster.Cluster]):
    """A connection to a cluster for blocking code.

    Raises:
        NameserverUnavailable, WrongCluster, TlsFailed, NotAuthenticated: on entering the context,
            as `rockoon.Cluster`.
    """

    def __init__(
        self, make: Callable[[], aio_cluster.Cluster], producer_settings: ProducerOptions
    ) -> None:
        super().__init__(make)
        self._producer_settings = producer_settings
        self._producer: Producer | None = None

    def __enter__(self) -> Self:
        # The producer of an earlier `with` block was closed with its connection.
        self._producer = None
        return super().__enter__()

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

    def _open_producer(self) -> "Producer":
        if self._producer is None:
            self._producer = self.asyncio.producer(**self._producer_settings)
        return self._producer
