"""Channels to the nodes of a cluster, for the SDK and between services.

With or without TLS; with or without an access key that signs every call.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from rockoon_core.http2.channel import MESSAGE_BYTES_MAX, Http2Channel
from rockoon_core.pem_files import (
    Certificate,
    PemError,
    RenewedFiles,
    read,
    try_authorities,
    try_certificate,
)
from rockoon_core.signature import Credentials, Signer
from rockoon_core.signed_channel import SignedBlockingChannel, SignedChannel

Options = Sequence[tuple[str, Any]]

# A pod comes back under its name at another address, and a name server tells so when it knows. By
# itself gRPC asks again half a minute after it asked last, however often it fails to connect.
NAME_OPTIONS: Options = (("grpc.dns_min_time_between_resolutions_ms", 500),)
# How long an answer may be, and the length that no message of gRPC can exceed.
LONGEST_ANSWER = "grpc.max_receive_message_length"
UNBOUNDED_BYTES = (1 << 32) - 1
# How often the files of certificates are looked at while channels are asked for.
LOOK_SECONDS = 1.0
# A channel with a former certificate goes on through so many renewals, for the calls on it.
FORMER_CHANNELS_MAX = 2


@dataclass(frozen=True, slots=True)
class Tls:
    """Calls are made over TLS, and the server has to prove that it is who it should be.

    Files are PEM. When they are renewed, new connections take what is new.

    Args:
        ca: certificates of the authorities that sign servers'; None means those in gRPC itself.
        certificate: our own, for servers that ask for one (mutual TLS), with its chain.
        key: of that certificate.
        server_name: the name that servers' certificates must bear; by default the host part of
            the address that is dialled.
    """

    ca: Path | str | None = None
    certificate: Path | str | None = None
    key: Path | str | None = None
    server_name: str = ""

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(Path(path) for path in (self.ca, self.certificate, self.key) if path)


def channel_credentials(tls: Tls) -> grpc.ChannelCredentials:
    """What gRPC needs to dial over TLS.

    Raises:
        PemError: a file cannot be used.
    """
    own_certificate(tls)
    if tls.ca:
        try_authorities(Path(tls.ca))
    return grpc.ssl_channel_credentials(
        root_certificates=read(Path(tls.ca)) if tls.ca else None,
        private_key=read(Path(tls.key)) if tls.key else None,
        certificate_chain=read(Path(tls.certificate)) if tls.certificate else None,
    )


def own_certificate(tls: Tls) -> Certificate | None:
    """Our own certificate, tried out; None without one. Raises PemError."""
    if not tls.certificate and not tls.key:
        return None
    if not tls.certificate or not tls.key:
        raise PemError("a certificate and its key go together: only one of them is given")
    return try_certificate(Path(tls.certificate), Path(tls.key), as_client=True)


class Dialer:
    """Makes channels.

    Args:
        options: for channels that gRPC makes (TLS, a scheme in the address, blocking ones). How
            long an answer may be counts for all; the rest of it our own channels do anyway.
        tls: None means plain connections.
        access: signs the calls; None means that they are not signed.

    Raises:
        PemError: a file of `tls` cannot be used.
    """

    def __init__(
        self, options: Options, tls: Tls | None = None, access: Credentials | None = None
    ) -> None:
        self._options = [*NAME_OPTIONS, *options]
        longest = int(dict(options).get(LONGEST_ANSWER, MESSAGE_BYTES_MAX))
        self._answer_bytes_max = longest if longest >= 0 else UNBOUNDED_BYTES
        self.tls = tls
        self.access = access
        self._credentials: RenewedFiles[grpc.ChannelCredentials] | None = None
        self._looked_at = time.monotonic()
        if tls is not None:
            if tls.server_name:
                self._options.append(("grpc.ssl_target_name_override", tls.server_name))
            self._credentials = RenewedFiles(tls.files, lambda: channel_credentials(tls))

    @property
    def version(self) -> int:
        """Changes when certificates were renewed: channels made before have the former ones."""
        if self._credentials is None:
            return 0
        now = time.monotonic()
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            self._credentials.look()
        return self._credentials.version

    def channel(self, address: str) -> aio.Channel:
        """A channel to "host:port"; it connects by itself, and again after failures."""
        # What has a scheme is for gRPC's resolvers; TLS is still its own, too.
        channel: aio.Channel = (
            Http2Channel(address, message_bytes_max=self._answer_bytes_max)
            if self._credentials is None and "://" not in address
            else self._of_grpc(address)
        )
        return channel if self.access is None else SignedChannel(channel, self._signer(address))

    def _of_grpc(self, address: str) -> aio.Channel:
        if self._credentials is None:
            return aio.insecure_channel(address, options=self._options)
        return aio.secure_channel(address, self._credentials.value, options=self._options)

    def blocking_channel(self, address: str) -> grpc.Channel:
        """Likewise, for code without an event loop."""
        channel = (
            grpc.insecure_channel(address, options=self._options)
            if self._credentials is None
            else grpc.secure_channel(address, self._credentials.value, options=self._options)
        )
        if self.access is None:
            return channel
        return SignedBlockingChannel(channel, self._signer(address))

    def _signer(self, address: str) -> Signer:
        assert self.access is not None
        return self.access.signer(address)


class Channels:
    """The open channels of one owner, one for each address, bounded by the number of nodes.

    Args:
        options, tls, access: as of `Dialer`.

    Raises:
        PemError: a file of `tls` cannot be used.
    """

    def __init__(
        self, options: Options, tls: Tls | None = None, access: Credentials | None = None
    ) -> None:
        self._dialer = Dialer(options, tls, access)
        # Address → its channels with the version of the certificates each has, the newest last.
        self._channels: dict[str, list[tuple[int, aio.Channel]]] = {}
        self._stubs: dict[tuple[str, Callable[[Any], Any]], tuple[aio.Channel, Any]] = {}

    @property
    def tls(self) -> Tls | None:
        return self._dialer.tls

    @property
    def access(self) -> Credentials | None:
        return self._dialer.access

    def get(self, address: str) -> aio.Channel:
        """The channel to "host:port"; it connects by itself, and again after failures."""
        version = self._dialer.version
        known = self._channels.setdefault(address, [])
        if not known or known[-1][0] != version:
            known.append((version, self._dialer.channel(address)))
            # Calls on a channel that leaves the list keep their connection until they end.
            del known[: -1 - FORMER_CHANNELS_MAX]
        return known[-1][1]

    def stub(self, address: str, make: Callable[[Any], Any]) -> Any:
        """A stub of the channel to "host:port", made once: that costs as much as a small call.

        Args:
            make: the stub's class.
        """
        channel = self.get(address)
        known = self._stubs.get((address, make))
        if known is None or known[0] is not channel:
            known = self._stubs[address, make] = channel, make(channel)
        return known[1]

    async def close(self) -> None:
        """End all calls and connections."""
        self._stubs.clear()
        while self._channels:
            _, known = self._channels.popitem()
            for _, channel in known:
                await channel.close()
