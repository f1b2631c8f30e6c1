"""A cluster as programs hold it: a connection, and what is made with it.

async with rockoon.connect("127.0.0.1:9876") as cluster:
    producer = cluster.producer()
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    TypeVar,
    Unpack,
    overload,
)

from rockoon.admin.admin import Admin
from rockoon.compression import LEVEL_DEFAULT, PACKED_BYTES_MIN, Compression, CompressionName
from rockoon.consumer.missing_topics import MissingTopicsRule
from rockoon.consumer.pull_consumer import PullConsumer
from rockoon.consumer.push_consumer import PushConsumer
from rockoon.net.access import AccessKey
from rockoon.net.addresses import parse_addresses
from rockoon.net.connection import CONNECT_SECONDS_MAX, RETRY_SECONDS, Connection
from rockoon.net.tls import Tls
from rockoon.offsets.start import ConsumeFrom, StartName
from rockoon.producer.producer import Producer
from rockoon.producer.queue_selectors import KeyHash, crc32_key_hash
from rockoon.producer.settings import ProducerSettings
from rockoon.receiving.engine import ReceivingEngine
from rockoon.receiving.simple_consumer import EXTEND_SECONDS_MAX, SimpleConsumer
from rockoon.transactions.producer import TransactionalProducer
from rockoon_core.clock import Clock, wall_clock_ms

if TYPE_CHECKING:
    from rockoon.consumer.delivery import BatchHandler, MessageHandler
    from rockoon.consumer.options import PushOptions
    from rockoon.hooks import Hooks


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
) -> "Cluster":
    """Return a cluster to use as `async with connect("127.0.0.1:9876") as cluster:`.

    Args:
        nameservers: "host:port" of some or all of them: a sequence, or text separated by commas
            or semicolons.
        cluster: name that the nameservers must bear; by default any.
        client_id: how this process is called in consumer groups; "host@pid@random" by default.
        connect_seconds_max: how long entering may take.
        retry_seconds: how long calls go on trying while a service does not answer, as one that is
            being replaced; messages have their `delivery_timeout_seconds`, and reading has no end.
        tls: how to be sure of the servers, and which certificate to show them; None means as the
            environment's ROCKOON_TLS... say (`rockoon.net.tls`): plain connections without them.
        access: the access key to sign calls with; None means as the environment's
            ROCKOON_ACCESS... say (`rockoon.net.access`): without them, calls are not signed.
        tracing: how messages are traced, a `rockoon.tracing.Tracing`; None: not at all.

    Raises:
        InvalidArgument: no nameserver is given, one is not of the form "host:port", or a file
            of `tls` or the access key cannot be used.
    """
    return Cluster(
        parse_addresses(nameservers),
        cluster=cluster,
        client_id=client_id,
        connect_seconds_max=connect_seconds_max,
        retry_seconds=retry_seconds,
        tls=tls,
        access=access,
        tracing=tracing,
    )


Arguments = ParamSpec("Arguments")
Made = TypeVar("Made")


def made_here(
    name: str,
    make: Callable[Concatenate[Connection, Arguments], Made],
) -> Callable[Concatenate["Cluster", Arguments], Made]:
    """A method of clusters that makes something on them, with its signature and its text."""

    def method(self: "Cluster", /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Made:
        return make(self, *args, **kwargs)

    signature = inspect.signature(make)
    _, *others = signature.parameters.values()
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[itself, *others], return_annotation=make
    )
    method.__name__, method.__doc__ = name, make.__doc__
    method.__qualname__ = f"Cluster.{name}"
    return method


class Cluster(Connection):
    """A connection to a cluster, and the producers, consumers and administration on it."""

    _admin: Admin | None = None
    _receiving: ReceivingEngine | None = None

    def producer(
        self,
        *,
        idempotent: bool = False,
        linger_ms: float = 5.0,
        delivery_timeout_seconds: float = 30.0,
        reply_timeout_seconds: float = 10.0,
        batch_bytes_max: int = 1 << 20,
        batch_messages_max: int = 16_384,
        in_flight_max: int = 8,
        buffer_bytes_max: int = 64 << 20,
        drain_bytes: int = 32 << 20,
        compression: Compression | CompressionName = Compression.NONE,
        compression_bytes_min: int = PACKED_BYTES_MIN,
        compression_level: int = LEVEL_DEFAULT,
        key_hash: KeyHash = crc32_key_hash,
        clock: Clock = wall_clock_ms,
    ) -> Producer:
        """Return a producer. Most programs set the first three arguments or none.

        Args:
            idempotent, linger_ms, delivery_timeout_seconds, reply_timeout_seconds, batch_bytes_max,
                batch_messages_max, in_flight_max, buffer_bytes_max, drain_bytes, compression,
                compression_bytes_min, compression_level: as the fields of
                `rockoon.producer.settings.ProducerSettings`, whose defaults these are.
            key_hash: from an ordering key to the number that chooses the queue.
            clock: stamps messages with the time at which they were sent, epoch milliseconds.

        Raises:
            InvalidArgument: a value is out of its bounds.
            Closed: the connection is closed.
        """
        settings = ProducerSettings(
            idempotent=idempotent,
            linger_ms=linger_ms,
            delivery_timeout_seconds=delivery_timeout_seconds,
            reply_timeout_seconds=reply_timeout_seconds,
            batch_bytes_max=batch_bytes_max,
            batch_messages_max=batch_messages_max,
            in_flight_max=in_flight_max,
            buffer_bytes_max=buffer_bytes_max,
            drain_bytes=drain_bytes,
            compression=compression,
            compression_bytes_min=compression_bytes_min,
            compression_level=compression_level,
        )
        return Producer(self, settings, key_hash=key_hash, clock=clock)

    transactional_producer = made_here("transactional_producer", TransactionalProducer)
    pull_consumer = made_here("pull_consumer", PullConsumer)
    if TYPE_CHECKING:

        @overload
        def push_consumer(
            self,
            group: str,
            subscriptions: Mapping[str, str],
            handler: MessageHandler,
            *,
            batch_max: Literal[1] = 1,
            **options: Unpack[PushOptions],
        ) -> PushConsumer: ...

        @overload
        def push_consumer(
            self,
            group: str,
            subscriptions: Mapping[str, str],
            handler: BatchHandler,
            *,
            batch_max: int,
            **options: Unpack[PushOptions],
        ) -> PushConsumer: ...

        def push_consumer(self, *_: Any, **__: Any) -> PushConsumer:
            """Return a `PushConsumer`: all its arguments but the connection."""
            raise NotImplementedError

    else:
        push_consumer = made_here("push_consumer", PushConsumer)

    def simple_consumer(
        self,
        group: str,
        subscriptions: Mapping[str, str],
        *,
        consume_from: ConsumeFrom | StartName = ConsumeFrom.GROUP,
        receiver: str = "",
        create_group: bool = True,
        extend_seconds_max: float = EXTEND_SECONDS_MAX,
        missing_topics: MissingTopicsRule = "wait",
    ) -> SimpleConsumer:
        """Return a consumer that receives and acknowledges messages one by one.

        Args:
            group, subscriptions, consume_from, receiver, create_group, extend_seconds_max,
                missing_topics: see a
                `rockoon.receiving.simple_consumer.SimpleConsumer`.

        Raises:
            InvalidArgument, InvalidExpression: the subscriptions are none.
            Closed: the connection is closed.
        """
        return SimpleConsumer(
            self.receiving,
            group,
            subscriptions,
            consume_from=consume_from,
            receiver=receiver,
            create_group=create_group,
            extend_seconds_max=extend_seconds_max,
            missing_topics=missing_topics,
        )

    @property
    def admin(self) -> Admin:
        """Topics, groups, offsets and status."""
        if self._admin is None:
            self._admin = Admin(self)
        return self._admin

    @property
    def receiving(self) -> ReceivingEngine:
        """What its receivers share; for gateways. Programs make a consumer."""
        if self._receiving is None:
            self._receiving = ReceivingEngine(self)
        return self._receiving
