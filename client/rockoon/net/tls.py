"""TLS of a connection: configuration by environment variables, and diagnosis of failures.

ROCKOON_TLS                on or off; default: on if one of the following is set
ROCKOON_TLS_CA             PEM file: CA certificates of the servers
ROCKOON_TLS_CERTIFICATE    PEM file: client certificate, for mutual TLS
ROCKOON_TLS_KEY            PEM file: its private key
ROCKOON_TLS_SERVER_NAME    name in the servers' certificates, if it is not the address's host
"""

import os
from collections.abc import Mapping, Sequence

import grpc

from rockoon.errors import InvalidArgument
from rockoon.net.access import AccessKey, credentials
from rockoon_core.channels import Channels, Dialer, Tls, own_certificate
from rockoon_core.failed_call import ENDED_AT_ONCE, NOT_SIGNED, NOT_TAKEN, connection_trouble
from rockoon_core.pem_files import PemError

__all__ = ["Tls", "TlsTroubles", "dialer", "from_environment", "open_channels", "why_no_tls"]

VARIABLE = "ROCKOON_TLS"
# A server that is being killed may seem to require another kind of connection. gRPC has tried again
# by the end of this time.
TROUBLE_SECONDS = 0.5


def from_environment(environment: Mapping[str, str]) -> Tls | None:
    """Return the TLS configuration of the environment; None for plain connections.

    Raises:
        InvalidArgument: ROCKOON_TLS is neither on nor off.
    """

    def given(name: str) -> str:
        return environment.get(f"{VARIABLE}_{name}", "")

    switch = environment.get(VARIABLE, "").lower()
    if switch not in ("", "on", "off"):
        raise InvalidArgument(reason=f"{VARIABLE} is {switch!r}, not on or off")
    tls = Tls(given("CA"), given("CERTIFICATE"), given("KEY"), given("SERVER_NAME"))
    return tls if switch == "on" or (switch != "off" and (tls.files or tls.server_name)) else None


def open_channels(tls: Tls | None, access: AccessKey | None = None) -> Channels:
    """Return the channels of a connection.

    Args:
        tls: None uses the environment.
        access: None uses the environment.

    Raises:
        InvalidArgument: a file or an access key is invalid.
    """
    try:
        signing = credentials(access, os.environ)
        return Channels(tls or from_environment(os.environ), signing)
    except PemError as failure:
        raise InvalidArgument(reason=str(failure)) from None


def dialer(tls: Tls | None = None, access: AccessKey | None = None) -> Dialer:
    """Return a dialer for code without a `Cluster`; arguments as in `open_channels`."""
    try:
        signing = credentials(access, os.environ)
        return Dialer(tls or from_environment(os.environ), signing)
    except PemError as failure:
        raise InvalidArgument(reason=str(failure)) from None


def why_no_tls(failure: grpc.RpcError, tls: Tls | None) -> str:
    """Return why a connection failed, as far as TLS is the cause.

    Args:
        failure: error of a call on the connection.
        tls: TLS configuration of the connection.

    Returns:
        The end of a sentence; empty if TLS is not the cause.
    """
    if not isinstance(failure, grpc.aio.AioRpcError | grpc.Call):
        return ""
    if failure.code() is not grpc.StatusCode.UNAVAILABLE:
        return ""
    trouble = connection_trouble(failure.details() or "")
    if trouble == NOT_SIGNED and tls is not None and tls.ca is not None:
        return f"{trouble} ({tls.ca})"
    if trouble not in (ENDED_AT_ONCE, NOT_TAKEN):
        return trouble
    if tls is None:
        return (
            "the server closes connections immediately, as a server with TLS does, and this client "
            f"does not use TLS: set a CA file ({VARIABLE}_CA)"
        )
    try:
        certificate = own_certificate(tls)
    except PemError as reason:
        return f"the server closes connections immediately, and {reason}"
    if certificate is None:
        return (
            "the server closes connections immediately, as a server with mutual TLS does, and this "
            f"client has no certificate: set {VARIABLE}_CERTIFICATE and {VARIABLE}_KEY"
        )
    return (
        f"the server refuses the certificate {certificate}: it must be signed by a CA that the "
        "server trusts"
    )


class TlsTroubles:
    """Addresses at which TLS connections fail, and since when."""

    def __init__(self) -> None:
        # Address → time of the first failure, and the latest reason.
        self._troubles: dict[str, tuple[float, str]] = {}

    def record(self, address: str, reason: str, now_seconds: float) -> None:
        """Record a failed connection; an empty `reason` means that TLS was not the cause."""
        since, _ = self._troubles.pop(address, (now_seconds, ""))
        if reason:
            self._troubles[address] = (since, reason)

    def lasting(self, addresses: Sequence[str], now_seconds: float) -> bool:
        """Return whether TLS has failed at all addresses for TROUBLE_SECONDS, so that retries are
        useless."""
        return all(
            address in self._troubles
            and now_seconds - self._troubles[address][0] >= TROUBLE_SECONDS
            for address in addresses
        )

    @property
    def first(self) -> tuple[str, str] | None:
        """Return one address at which TLS has failed, and the reason; None if there is none."""
        return next(((at, reason) for at, (_, reason) in self._troubles.items()), None)
