"""TLS as a client has it: from the environment, and why it does not come about.

ROCKOON_TLS                on, or off whatever else is set; on by itself once one of these is:
ROCKOON_TLS_CA             PEM file: the authorities that sign the servers' certificates
ROCKOON_TLS_CERTIFICATE    PEM file: our certificate, for servers with mutual TLS
ROCKOON_TLS_KEY            PEM file: its key
ROCKOON_TLS_SERVER_NAME    name that servers' certificates must bear, if not the address's host
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
# A server that is just being killed may look for a moment as if it wanted another kind of
# connection. By then gRPC has tried again.
TROUBLE_SECONDS = 0.5


def from_environment(environment: Mapping[str, str]) -> Tls | None:
    """What the environment says; None for plain connections.

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
    """Channels for a cluster object.

    Args:
        tls: None means what the environment says.
        access: likewise.

    Raises:
        InvalidArgument: a file or an access key cannot be used.
    """
    try:
        signing = credentials(access, os.environ)
        return Channels(tls or from_environment(os.environ), signing)
    except PemError as failure:
        raise InvalidArgument(reason=str(failure)) from None


def dialer(tls: Tls | None = None, access: AccessKey | None = None) -> Dialer:
    """Makes channels for code without a cluster object; arguments as of `open_channels`."""
    try:
        signing = credentials(access, os.environ)
        return Dialer(tls or from_environment(os.environ), signing)
    except PemError as failure:
        raise InvalidArgument(reason=str(failure)) from None


def why_no_tls(failure: grpc.RpcError, tls: Tls | None) -> str:
    """What to look at when a connection does not come about.

    Args:
        failure: of a call on it.
        tls: how it was tried.

    Returns:
        One sentence's end; empty when TLS has nothing to do with it.
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
            "the server ends connections at once, as one does that wants TLS, and none is set "
            f"here: give a CA file ({VARIABLE}_CA)"
        )
    try:
        certificate = own_certificate(tls)
    except PemError as reason:
        return f"the server ends connections at once, and {reason}"
    if certificate is None:
        return (
            "the server ends connections at once, as one does that wants a client certificate, and "
            f"none is given ({VARIABLE}_CERTIFICATE, {VARIABLE}_KEY)"
        )
    return (
        f"the server does not take the certificate {certificate}: is it signed by an authority "
        "that the server trusts?"
    )


class TlsTroubles:
    """At which addresses TLS does not come about, and for how long."""

    def __init__(self) -> None:
        # Address → since when, and the latest reason.
        self._troubles: dict[str, tuple[float, str]] = {}

    def note(self, address: str, reason: str, now_seconds: float) -> None:
        """A connection did not come about: because of TLS, or with an empty reason otherwise."""
        since, _ = self._troubles.pop(address, (now_seconds, ""))
        if reason:
            self._troubles[address] = (since, reason)

    def lasting(self, addresses: Sequence[str], now_seconds: float) -> bool:
        """Whether all of them have had trouble for a while: trying on is no use."""
        return all(
            address in self._troubles
            and now_seconds - self._troubles[address][0] >= TROUBLE_SECONDS
            for address in addresses
        )

    @property
    def first(self) -> tuple[str, str] | None:
        """Some address in trouble, and its reason."""
        return next(((at, reason) for at, (_, reason) in self._troubles.items()), None)
