"""TLS as a service has it: its settings, what its server shows, and who its callers are."""

import dataclasses
import logging
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rockoon_core.channels import Tls
from rockoon_core.pem_files import (
    Certificate,
    PemError,
    RenewedFiles,
    try_authorities,
    try_certificate,
)
from rockoon_runtime.settings import SettingsError, setting
from rockoon_runtime.telemetry.metrics import Measure, Measurement, Metric, gauge

log = logging.getLogger(__name__)

# A renewal that has not come by then will need a person.
EXPIRY_WARNING_SECONDS = 7 * 86_400.0

CERTIFICATE_LEFT = gauge(
    "rockoon_tls_certificate_left_seconds",
    "Until the certificate in force expires, seconds; negative when it has",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """The settings that every service has for its connections."""

    tls: str = setting(
        "off",
        "off: plain connections; on: callers see this service's certificate, and it asks for that "
        "of services it calls; mutual: both sides show one",
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
        None, "PEM file: the authorities that sign the certificates of services and callers"
    )
    tls_server_name: str = setting(
        "",
        "name that the certificates of services called must bear (empty: the host in their "
        "address)",
    )
    tls_health_listen: str = setting(
        "",
        "host:port where grpc.health.v1 alone is answered, plainly: Kubernetes' probes know no "
        "TLS (empty: nowhere)",
    )


def client_tls(settings: TlsSettings) -> Tls | None:
    """How this service calls others; None when plainly.

    Raises:
        SettingsError: a file is missing.
    """
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
    """What this service's server shows and asks for; None when it is plain.

    Raises:
        SettingsError: a file is missing or cannot be used.
    """
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
    """What a server shows its callers. Renewed files come into force for new connections.

    Args:
        certificate: with its chain.
        key: of the certificate.
        callers_ca: authorities that sign callers' certificates; None asks for no certificate.

    Raises:
        PemError: a file cannot be used.
    """

    def __init__(self, certificate: Path, key: Path, callers_ca: Path | None) -> None:
        self._paths = [path for path in (certificate, key, callers_ca) if path is not None]

        def make() -> tuple[Certificate, ssl.SSLContext]:
            found = try_certificate(certificate, key)
            if callers_ca is not None:
                try_authorities(callers_ca)
            return found, self._made(certificate, key, callers_ca)

        self._files = RenewedFiles(self._paths, make)
        mutual = ", callers show theirs" if callers_ca is not None else ""
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
        context.sni_callback = self._greeted
        return context

    @property
    def certificate(self) -> Certificate:
        """The certificate in force."""
        return self._files.value[0]

    def context(self) -> ssl.SSLContext:
        """For a server. Each handshake takes the certificate that is in force by then."""
        return self._files.value[1]

    def look(self) -> None:
        """Take over renewed files, and say so; say also when a certificate is about to expire."""
        if self._files.look():
            log.info("TLS: renewed, %s", self.certificate)
        left = self.certificate.seconds_left()
        if left < EXPIRY_WARNING_SECONDS:
            state = "has expired" if left <= 0 else f"expires in {left / 3600:.1f} hours"
            log.warning("TLS: %s %s", self.certificate, state)

    def _greeted(self, connection: Any, _name: str | None, _context: ssl.SSLContext) -> None:
        """A handshake begins, with or without a name."""
        if self._files.look():
            log.info("TLS: renewed, %s", self.certificate)
        connection.context = self._files.value[1]


def with_certificate(
    table: Iterable[Metric], measure: Measure, tls: ServerTls | None
) -> tuple[Iterable[Metric], Measure]:
    """A service's metrics, and when its certificate expires if it has one."""
    if tls is None:
        return table, measure

    async def measured() -> Iterable[Measurement]:
        return [*await measure(), CERTIFICATE_LEFT.at(tls.certificate.seconds_left())]

    return (*table, CERTIFICATE_LEFT), measured


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """Whom a caller's certificate names.

    Attributes:
        common_name: of its subject; may be empty.
        dns_names: its alternative names that are DNS names.
    """

    common_name: str
    dns_names: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, without those that are empty."""
        return tuple(name for name in (self.common_name, *self.dns_names) if name)


def peer_identity(context: Any) -> PeerIdentity | None:
    """Who is calling, by the certificate that this connection was opened with.

    Args:
        context: of the call.

    Returns:
        None when the caller showed no certificate that was verified: plain, or not mutual TLS.
    """
    found: Mapping[str, list[bytes]] = context.auth_context()
    if not found.get("x509_pem_cert"):
        return None

    def texts(key: str) -> tuple[str, ...]:
        return tuple(value.decode(errors="replace") for value in found.get(key, ()))

    common_names = texts("x509_common_name")
    return PeerIdentity(common_names[0] if common_names else "", texts("peer_dns"))
