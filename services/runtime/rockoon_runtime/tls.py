"""TLS as a service has it: its settings, what its server shows, and who its callers are."""

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from rockoon_core.channels import Tls
from rockoon_core.pem_files import (
    Certificate,
    PemError,
    RenewedFiles,
    read,
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
            health_listen=settings.tls_health_listen,
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
        health_listen: "host:port" at which the server tells its health plainly; empty for none.

    Raises:
        PemError: a file cannot be used.
    """

    def __init__(
        self, certificate: Path, key: Path, callers_ca: Path | None, *, health_listen: str = ""
    ) -> None:
        self.health_listen = health_listen
        self._paths = [path for path in (certificate, key, callers_ca) if path is not None]

        def make() -> tuple[Certificate, grpc.ServerCertificateConfiguration]:
            found = try_certificate(certificate, key)
            if callers_ca is not None:
                try_authorities(callers_ca)
            pair = (read(key), read(certificate))
            roots = None if callers_ca is None else read(callers_ca)
            return found, grpc.ssl_server_certificate_configuration([pair], roots)

        self._files = RenewedFiles(self._paths, make)
        # What gRPC was given last: it makes its own things again whenever it is given something.
        self._given = self._files.version
        self._mutual = callers_ca is not None
        log.info("TLS: %s%s", self.certificate, ", callers show theirs" if self._mutual else "")

    @property
    def certificate(self) -> Certificate:
        """The certificate in force."""
        return self._files.value[0]

    def credentials(self) -> grpc.ServerCredentials:
        """For `add_secure_port`. gRPC asks at every handshake, from threads of its own."""
        return grpc.dynamic_ssl_server_credentials(
            self._files.value[1],
            self._renewed,
            require_client_authentication=self._mutual,
        )

    def look(self) -> None:
        """Take over renewed files, and say so; say also when a certificate is about to expire."""
        if self._files.look():
            log.info("TLS: renewed, %s", self.certificate)
        left = self.certificate.seconds_left()
        if left < EXPIRY_WARNING_SECONDS:
            state = "has expired" if left <= 0 else f"expires in {left / 3600:.1f} hours"
            log.warning("TLS: %s %s", self.certificate, state)

    def _renewed(self) -> Any:
        if self._files.look():
            log.info("TLS: renewed, %s", self.certificate)
        # `look` may have taken it over before.
        if self._given == self._files.version:
            return None
        self._given = self._files.version
        return self._files.value[1]


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
