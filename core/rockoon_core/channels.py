"""Channels to the nodes of a cluster, for the SDK and between services.

With or without TLS; with or without an access key that signs every call.
"""

import asyncio
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, cast

import grpc
from grpc import aio

from rockoon_core.pem_files import (
    Certificate,
    PemError,
    RenewedFiles,
    read,
    try_authorities,
    try_certificate,
)
from rockoon_core.signature import Credentials, Signer
from rockoon_proto.v1.nameserver_pb2 import Node
from rockoon_rpc.channel import ALPN, LIMITS, LIVENESS, Channel, ChannelTls
from rockoon_rpc.liveness import Liveness

Serialize = Callable[[Any], bytes]


class _Opener(Protocol):
    """Interface of channels: the methods that asyncio channels and blocking channels have in
    common."""

    def unary_unary(self, method: str, *args: Any, **options: Any) -> Any: ...
    def unary_stream(self, method: str, *args: Any, **options: Any) -> Any: ...
    def stream_unary(self, method: str, *args: Any, **options: Any) -> Any: ...
    def stream_stream(self, method: str, *args: Any, **options: Any) -> Any: ...


class SignedCall:
    """One method of a stub, whose calls are signed with an access key.

    A wrapper instead of gRPC's interceptors: those add an object and a task to each call, and see
    requests before they are serialized. Here a call is gRPC's own.

    Args:
        call: gRPC's callable for the method; it receives a single request as bytes.
        method: "/package.Service/Method".
        serialize: serializes the request; None for a stream of requests, which gRPC serializes.
    """

    def __init__(self, call: Any, signer: Signer, method: str, serialize: Serialize | None) -> None:
        self._call = call
        self._signer = signer
        self._method = method
        self._serialize = serialize

    def __call__(self, request: Any = None, *, metadata: Any = None, **options: Any) -> Any:
        request, metadata = self._signed(request, metadata)
        return self._call(request, metadata=metadata, **options)

    def future(self, request: Any, *, metadata: Any = None, **options: Any) -> Any:
        request, metadata = self._signed(request, metadata)
        return self._call.future(request, metadata=metadata, **options)

    def with_call(self, request: Any, *, metadata: Any = None, **options: Any) -> Any:
        request, metadata = self._signed(request, metadata)
        return self._call.with_call(request, metadata=metadata, **options)

    def _signed(self, request: Any, metadata: Any) -> tuple[Any, tuple[tuple[str, Any], ...]]:
        body = None
        if self._serialize is not None:
            request = body = self._serialize(request)
        return request, (*(metadata or ()), self._signer.entry(self._method, body))


class _Signing:
    """Base of signed channels: replaces the methods of stubs by signed ones."""

    def __init__(self, channel: _Opener, signer: Signer) -> None:
        self._opener = channel
        self._signer = signer

    def unary_unary(self, method: str, *args: Any, **options: Any) -> Any:
        return self._one_request(self._opener.unary_unary, method, *args, **options)

    def unary_stream(self, method: str, *args: Any, **options: Any) -> Any:
        return self._one_request(self._opener.unary_stream, method, *args, **options)

    def stream_unary(self, method: str, *args: Any, **options: Any) -> Any:
        call = self._opener.stream_unary(method, *args, **options)
        return SignedCall(call, self._signer, method, None)

    def stream_stream(self, method: str, *args: Any, **options: Any) -> Any:
        call = self._opener.stream_stream(method, *args, **options)
        return SignedCall(call, self._signer, method, None)

    def _one_request(
        self,
        opened: Callable[..., Any],
        method: str,
        request_serializer: Serialize | None = None,
        *args: Any,
        **options: Any,
    ) -> Any:
        """Create gRPC's callable of a method with one request, without a serializer: it receives
        the serialized bytes that were signed."""
        call = opened(method, None, *args, **options)
        return SignedCall(call, self._signer, method, request_serializer or bytes)


class SignedChannel(_Signing, aio.Channel):
    """An asyncio channel whose calls are signed."""

    def __init__(self, channel: aio.Channel, signer: Signer) -> None:
        super().__init__(cast(_Opener, channel), signer)
        self._channel = channel

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await self._channel.close()

    async def close(self, grace: float | None = None) -> None:
        await self._channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._channel.channel_ready()


class SignedBlockingChannel(_Signing, grpc.Channel):
    """A blocking channel whose calls are signed."""

    def __init__(self, channel: grpc.Channel, signer: Signer) -> None:
        super().__init__(cast(_Opener, channel), signer)
        self._channel = channel

    def subscribe(self, callback: Any, try_to_connect: bool = False) -> None:
        self._channel.subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Any) -> None:
        self._channel.unsubscribe(callback)

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: Any) -> None:
        self._channel.close()


MESSAGE_BYTES_MAX = LIMITS.message_bytes_max
# For channels of gRPC itself, used by code without an event loop. Large frames, so that batches of
# a few MiB are not split into 16 KiB pieces. Keepalive detects peers that vanished silently, and
# the reconnect back-off ends at a second, not at gRPC's two minutes.
BLOCKING_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.http2.max_frame_size", 1 << 20),
    ("grpc.http2.lookahead_bytes", 4 << 20),
    ("grpc.keepalive_time_ms", 10_000),
    # Also the limit for unacknowledged data (TCP_USER_TIMEOUT).
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_retries", 0),
    # Each owner has separate connections: closing one must not disturb another owner.
    ("grpc.use_local_subchannel_pool", 1),
    # A restarted pod has its old name at another address. gRPC's default is to resolve again only
    # half a minute after the last time, however often it fails to connect.
    ("grpc.dns_min_time_between_resolutions_ms", 500),
)


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS for connections; the server must prove its identity.

    Files are PEM. After a renewal, new connections use the new files; open ones continue.

    Args:
        ca: certificates of the authorities for servers; None: those that the system trusts.
        certificate: client certificate for servers that ask for one (mutual TLS), with its chain.
        key: private key of the client certificate.
        server_name: name that servers' certificates must contain; default: the host of the
            address.
    """

    ca: Path | str | None = None
    certificate: Path | str | None = None
    key: Path | str | None = None
    server_name: str = ""

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(Path(path) for path in (self.ca, self.certificate, self.key) if path)


class Trust(NamedTuple):
    """TLS contexts made from `Tls`: one for Rockoon's own channels, one for gRPC's blocking
    channels."""

    context: ssl.SSLContext
    credentials: grpc.ChannelCredentials


def trust(tls: Tls) -> Trust:
    """Load the PEM files and create the TLS contexts. Raises PemError."""
    own_certificate(tls)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([ALPN])
    if tls.ca:
        try_authorities(Path(tls.ca))
        context.load_verify_locations(tls.ca)
    else:
        context.load_default_certs()
    if tls.certificate and tls.key:
        context.load_cert_chain(tls.certificate, tls.key)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=read(Path(tls.ca)) if tls.ca else None,
        private_key=read(Path(tls.key)) if tls.key else None,
        certificate_chain=read(Path(tls.certificate)) if tls.certificate else None,
    )
    return Trust(context, credentials)


def own_certificate(tls: Tls) -> Certificate | None:
    """Return the client certificate, verified to be usable; None without one. Raises PemError."""
    if not tls.certificate and not tls.key:
        return None
    if not tls.certificate or not tls.key:
        raise PemError("a certificate needs a key and a key a certificate: only one is given")
    return try_certificate(Path(tls.certificate), Path(tls.key), as_client=True)


class Dialer:
    """Creates channels.

    Args:
        tls: TLS files; None: no TLS.
        access: credentials that sign calls; None: calls are not signed.
        answer_bytes_max: limit of a reply in bytes; not used by blocking channels.
        liveness: time limits of silent connections; not used by blocking channels.

    Raises:
        PemError: a file of `tls` cannot be used.
    """

    def __init__(
        self,
        tls: Tls | None = None,
        access: Credentials | None = None,
        *,
        answer_bytes_max: int = MESSAGE_BYTES_MAX,
        liveness: Liveness = LIVENESS,
    ) -> None:
        self._answer_bytes_max = answer_bytes_max
        self._liveness = liveness
        self.tls = tls
        self.access = access
        self._trust = None if tls is None else RenewedFiles(tls.files, lambda: trust(tls))

    def channel(self, address: str) -> aio.Channel:
        """Create a channel to "host:port", which connects and reconnects automatically."""
        return self.signed(self.unsigned(address))

    def unsigned(self, address: str, ip_address: str = "", server_name: str = "") -> Channel:
        """Create a channel whose calls are not signed; see `Channel` and `Channels.get`."""
        tls = None if self._trust is None else partial(self._channel_tls, server_name)
        limits = replace(LIMITS, message_bytes_max=self._answer_bytes_max)
        channel = Channel(address, limits=limits, tls=tls, ip_address=ip_address)
        channel.liveness = self._liveness
        return channel

    def signed(self, channel: Channel) -> aio.Channel:
        """Return a channel that signs the calls of an unsigned one, if there are credentials."""
        if self.access is None:
            return channel
        return SignedChannel(channel, self._signer(channel.address))

    def blocking_channel(self, address: str) -> grpc.Channel:
        """Create a gRPC channel for code without an event loop."""
        if self.tls is None or self._trust is None:
            channel = grpc.insecure_channel(address, options=BLOCKING_OPTIONS)
        else:
            self._trust.reload()
            name = self.tls.server_name
            named = (("grpc.ssl_target_name_override", name),) if name else ()
            credentials = self._trust.value.credentials
            options = (*BLOCKING_OPTIONS, *named)
            channel = grpc.secure_channel(address, credentials, options=options)
        if self.access is None:
            return channel
        return SignedBlockingChannel(channel, self._signer(address))

    def _channel_tls(self, server_name: str) -> ChannelTls:
        assert self.tls is not None
        assert self._trust is not None
        self._trust.reload()
        return ChannelTls(self._trust.value.context, self.tls.server_name or server_name)

    def _signer(self, address: str) -> Signer:
        assert self.access is not None
        return self.access.signer(address)


class Channels:
    """The open channels of one owner, one per address, bounded by the number of nodes.

    Args:
        tls, access: see `Dialer`.

    Raises:
        PemError: a file of `tls` cannot be used.
    """

    def __init__(self, tls: Tls | None = None, access: Credentials | None = None) -> None:
        self._dialer = Dialer(tls, access)
        self._channels: dict[str, aio.Channel] = {}
        self._unsigned: dict[str, Channel] = {}
        # By address: where the current process listens, and when it was started.
        self._processes: dict[str, tuple[str, int]] = {}
        self._stubs: dict[tuple[str, Callable[[Any], Any]], Any] = {}

    @property
    def tls(self) -> Tls | None:
        return self._dialer.tls

    @property
    def access(self) -> Credentials | None:
        return self._dialer.access

    def get(self, address: str, server_name: str = "") -> aio.Channel:
        """Return the channel to "host:port", which connects and reconnects automatically.

        Args:
            server_name: name that the server's certificate must contain, if `Tls` has none; empty:
                the host of the address.
        """
        known = self._channels.get(address)
        if known is None:
            ip_address, _ = self._processes.get(address, ("", 0))
            unsigned = self._unsigned[address] = self._dialer.unsigned(
                address, ip_address, server_name
            )
            known = self._channels[address] = self._dialer.signed(unsigned)
        return known

    def learn(self, nodes: Iterable[Node]) -> None:
        """Record which process serves at the address of each node, as the routes state it.

        If it is a new process, the channel to the address connects to it without a pause, and
        without waiting for DNS. A process that was started before the known one is ignored: a
        nameserver that lags may still list it.
        """
        for node in nodes:
            process = (node.ip_address, node.started_at_ms)
            _, known_started_at_ms = known = self._processes.get(node.address, ("", 0))
            if process != known and node.started_at_ms >= known_started_at_ms:
                self._processes[node.address] = process
                if node.address in self._unsigned:
                    self._unsigned[node.address].move(node.ip_address)

    def stub(self, address: str, make: Callable[[Any], Any]) -> Any:
        """Return a stub of the channel to "host:port"; cached: creating one is expensive."""
        known = self._stubs.get((address, make))
        if known is None:
            known = self._stubs[address, make] = make(self.get(address))
        return known

    async def close(self) -> None:
        """End all calls and connections."""
        self._stubs.clear()
        self._unsigned.clear()
        channels = [*self._channels.values()]
        self._channels.clear()
        async with asyncio.TaskGroup() as tasks:
            for channel in channels:
                tasks.create_task(channel.close())
