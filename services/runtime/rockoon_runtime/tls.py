"""TLS of a service: settings, the server's certificate, identities of callers and of nodes."""

import dataclasses
import logging
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rockoon_core.channels import Tls
from rockoon_core.errors import WrongIdentity
from rockoon_core.pem_files import (
    Certificate,
    PemError,
    RenewedFiles,
    try_authorities,
    try_certificate,
)
from rockoon_runtime.settings import SettingsError, setting
from rockoon_runtime.telemetry.metrics import Measurement, gauge

log = logging.getLogger(__name__)

# A certificate that is not renewed by then probably needs an operator.
EXPIRY_WARNING_SECONDS = 7 * 86_400.0

CERTIFICATE_LEFT = gauge(
    "rockoon_tls_certificate_left_seconds",
    "Time until the certificate in use expires, seconds; negative if it has expired",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """The TLS settings of every service."""

    tls: str = setting(
        "off",
        "off: plain connections; on: this service presents its certificate, and verifies those of "
        "services that it calls; mutual: both sides present a certificate",
        choices=("off", "on", "mutual"),
        shared=True,
    )
    tls_certificate: Path | None = setting(  # noqa: RUF009 - a field, made once
        None, "PEM file: this service's certificate, with its chain; read again when renewed"
    )
    tls_key: Path | None = setting(  # noqa: RUF009 - a field, made once
        None, "PEM file: the certificate's key, not encrypted"
    )
    tls_ca: Path | None = setting(  # noqa: RUF009 - a field, made once
        None, "PEM file: the CAs that sign the certificates of services and callers"
    )
    tls_server_name: str = setting(
        "",
        "name required in the certificates of services that this service calls (empty: the host in "
        "their address)",
    )
    tls_health_listen: str = setting(
        "",
        "host:port of a listener for grpc.health.v1 only, without TLS, because Kubernetes' probes "
        "do not support TLS (empty: none)",
    )


def client_tls(settings: TlsSettings) -> Tls | None:
    """TLS of calls to other services; None if plain. Raises SettingsError for a missing file."""
    if settings.tls == "off":
        return None
    ca = required(settings, "tls_ca")
    if settings.tls == "on":
        return Tls(ca=ca, server_name=settings.tls_server_name)
    return Tls(
        ca=ca,
        certificate=required(settings, "tls_certificate"),
        key=required(settings, "tls_key"),
        server_name=settings.tls_server_name,
    )


def server_tls(settings: TlsSettings) -> "ServerTls | None":
    """TLS of this service's server; None if plain. Raises SettingsError for an invalid file."""
    if settings.tls == "off":
        given = [
            field.name
            for field in dataclasses.fields(TlsSettings)
            if field.name != "tls" and getattr(settings, field.name)
        ]
        if given:
            raise SettingsError(f"{given[0]} is set, but tls = off: nothing would be encrypted")
        return None
    mutual = settings.tls == "mutual"
    try:
        return ServerTls(
            required(settings, "tls_certificate"),
            required(settings, "tls_key"),
            required(settings, "tls_ca") if mutual else None,
        )
    except PemError as failure:
        raise SettingsError(str(failure)) from failure


def required(settings: TlsSettings, name: str) -> Path:
    path: Path | None = getattr(settings, name)
    if path is None:
        raise SettingsError(f"tls = {settings.tls} needs {name}")
    return path


class ServerTls:
    """The certificate that a server presents. New connections use renewed files.

    Args:
        certificate: with its chain.
        key: key of the certificate.
        callers_ca: CAs that sign callers' certificates; None requires no certificate.

    Raises:
        PemError: a file is not valid.
    """

    def __init__(self, certificate: Path, key: Path, callers_ca: Path | None) -> None:
        self._paths = [path for path in (certificate, key, callers_ca) if path is not None]

        def make() -> tuple[Certificate, ssl.SSLContext]:
            found = try_certificate(certificate, key)
            if callers_ca is not None:
                try_authorities(callers_ca)
            return found, self._made(certificate, key, callers_ca)

        self._files = RenewedFiles(self._paths, make)
        mutual = ", callers must present a certificate" if callers_ca is not None else ""
        log.info("TLS: %s%s", self.certificate, mutual)

    def _made(self, certificate: Path, key: Path, callers_ca: Path | None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["h2"])
        try:
            context.load_cert_chain(certificate, key)
            if callers_ca is not None:
                context.load_verify_locations(callers_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ssl.SSLError) as failure:
            raise PemError(f"{certificate}: {failure}") from failure
        context.sni_callback = self._on_handshake
        return context

    @property
    def certificate(self) -> Certificate:
        """The certificate in use."""
        return self._files.value[0]

    def context(self) -> ssl.SSLContext:
        """Return the context of a server. Each handshake uses the certificate that is then in
        use."""
        return self._files.value[1]

    def measurement(self) -> Measurement:
        return CERTIFICATE_LEFT.at(self.certificate.seconds_left())

    def check(self) -> None:
        """Load renewed files and log the renewal; log also if a certificate expires soon."""
        if self._files.reload():
            log.info("TLS: renewed, %s", self.certificate)
        left = self.certificate.seconds_left()
        if left < EXPIRY_WARNING_SECONDS:
            state = "has expired" if left <= 0 else f"expires in {left / 3600:.1f} hours"
            log.warning("TLS: %s %s", self.certificate, state)

    def _on_handshake(self, connection: Any, _name: str | None, _context: ssl.SSLContext) -> None:
        """Called at the start of a handshake, with or without a server name."""
        if self._files.reload():
            log.info("TLS: renewed, %s", self.certificate)
        connection.context = self._files.value[1]


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """Names in a caller's certificate: the subject's, which may be empty, and DNS names."""

    common_name: str
    dns_names: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """All names that are not empty."""
        return tuple(name for name in (self.common_name, *self.dns_names) if name)


def peer_identity(context: Any) -> PeerIdentity | None:
    """Return the identity in a caller's certificate; None if no certificate was verified."""
    found: Mapping[str, list[bytes]] = context.auth_context()
    if not found.get("x509_pem_cert"):
        return None

    def texts(key: str) -> tuple[str, ...]:
        return tuple(value.decode(errors="replace") for value in found.get(key, ()))

    common_names = texts("x509_common_name")
    return PeerIdentity(common_names[0] if common_names else "", texts("peer_dns"))


NAME_PLACE = "{name}"


class NodeIdentities:
    """Permits a broker or offset service to register only under a name in its certificate.

    Args:
        pattern: required common name or DNS name of the certificate; `{name}` is replaced by the
            node's name, and `*` matches any text.

    Raises:
        ValueError: the pattern has no `{name}`, so every node could use any name.
    """

    def __init__(self, pattern: str) -> None:
        if NAME_PLACE not in pattern:
            raise ValueError(f"tls_node_name = {pattern!r} must contain {NAME_PLACE}")
        self._pattern = pattern

    def check(self, node_name: str, certificate_names: Sequence[str]) -> None:
        """Raise WrongIdentity if no name of a certificate permits a node's name."""
        wanted = self._pattern.replace(NAME_PLACE, node_name)
        # Only the stars of the pattern are wildcards: any client can send a node name.
        parts = (
            re.escape(text.replace(NAME_PLACE, node_name)) for text in self._pattern.split("*")
        )
        allowed = re.compile(".*".join(parts))
        if not any(allowed.fullmatch(name) for name in certificate_names):
            raise WrongIdentity(
                identity=", ".join(certificate_names) or "nobody", name=node_name, wanted=wanted
            )
