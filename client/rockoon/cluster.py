"""The SDK's entry point: `connect`, and producers, consumers and administration of a cluster.

async with rockoon.connect("127.0.0.1:9876") as cluster:
    producer = cluster.producer()
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, Unpack, overload

from rockoon.admin.admin import Admin
from rockoon.compression import LEVEL_DEFAULT, PACKED_BYTES_MIN, Compression, CompressionName
from rockoon.consumer.pull_consumer import PullConsumer
from rockoon.consumer.push_consumer import PushConsumer, PushOptions
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
from rockoon.subscription import MissingTopicsRule
from rockoon.transactions.producer import TransactionalProducer
from rockoon_core.clock import Clock, wall_clock_ms

if TYPE_CHECKING:
    from rockoon.consumer.delivery import BatchHandler, MessageHandler
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
    """Return a cluster, to be used as `async with connect("127.0.0.1:9876") as cluster:`.

    Args:
        nameservers: "host:port" of some or all nameservers: a sequence, or text separated by
            commas or semicolons.
        cluster: name that the cluster must have; None accepts any.
        client_id: name of this process in consumer groups; "host@pid@random" by default.
        connect_seconds_max: timeout of connecting, in seconds.
        retry_seconds: how long a call is retried while a service does not answer, for example
            during its restart, in seconds. Sends have `delivery_timeout_seconds` instead; reads are
            retried without limit.
        tls: CA and client certificate; None uses the environment variables ROCKOON_TLS...
            (`rockoon.net.tls`), or plain connections if they are not set.
        access: access key that signs calls; None uses the environment variables
            ROCKOON_ACCESS... (`rockoon.net.access`), or unsigned calls if they are not set.
        tracing: a `rockoon.tracing.Tracing`, which traces messages; None disables tracing.

    Raises:
        InvalidArgument: there is no nameserver address, an address is not of the form "host:port",
            or a file of `tls` or the access key is invalid.
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


def factory_method(
    name: str,
    make: Callable[Concatenate[Connection, Arguments], Made],
) -> Callable[Concatenate["Cluster", Arguments], Made]:
    """Return a method of `Cluster` that constructs an object, with its signature and docstring."""

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
    """A connection to a cluster, with factories for producers, consumers and administration."""

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
        """Return a producer. Most programs need at most the first three arguments.

        Args:
            idempotent, linger_ms, delivery_timeout_seconds, reply_timeout_seconds, batch_bytes_max,
                batch_messages_max, in_flight_max, buffer_bytes_max, drain_bytes, compression,
                compression_bytes_min, compression_level: fields of
                `rockoon.producer.settings.ProducerSettings`, with the same defaults.
            key_hash: maps an ordering key to the number that selects the queue.
            clock: returns the born timestamp of messages, epoch milliseconds.

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

    transactional_producer = factory_method("transactional_producer", TransactionalProducer)
    pull_consumer = factory_method("pull_consumer", PullConsumer)
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
            """Return a `PushConsumer`; the arguments are those of its constructor."""
            raise NotImplementedError

    else:
        push_consumer = factory_method("push_consumer", PushConsumer)

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
                missing_topics: see `rockoon.receiving.simple_consumer.SimpleConsumer`.

        Raises:
            InvalidArgument, InvalidExpression: the subscriptions are invalid.
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
        """Administration of topics, groups, offsets and status."""
        if self._admin is None:
            self._admin = Admin(self)
        return self._admin

    @property
    def receiving(self) -> ReceivingEngine:
        """Engine shared by all receivers of this connection. Internal: used by gateways."""
        if self._receiving is None:
            self._receiving = ReceivingEngine(self)
        return self._receiving
