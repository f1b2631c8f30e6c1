"""TLS of a local cluster: a certificate authority in a directory, and TLS settings of each node.

Tests use the authority, too. Not for production: the authority's key is stored next to the
certificates that it signs.
"""

import ipaddress
import os
import secrets
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from rockoon.local.process import LocalClusterError, NodeKind
from rockoon.net.tls import Tls
from rockoon_core.pem_files import PemError, try_certificate

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey


AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 365
# Tolerates clocks of new machines that are not yet synchronized.
BEFORE_NOW = timedelta(hours=1)
THIS_MACHINE = ("localhost", "127.0.0.1")


@dataclass(frozen=True, slots=True)
class Issued:
    """Paths of a certificate and its key, both PEM files."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates.

    Args:
        directory: directory of the authority's certificate and key, created if missing.
        name: common name of a new authority; by default a unique one.

    Raises:
        LocalClusterError: the `cryptography` package is not installed.
    """

    def __init__(self, directory: Path, name: str | None = None) -> None:
        try:
            import cryptography  # noqa: F401 - checks that it is installed
        except ImportError:
            raise LocalClusterError(
                "making certificates needs a package: `pip install 'rockoon[local]'`"
            ) from None
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self.ca = directory / "ca.pem"
        if not self.ca.exists():
            self._create_authority(name or f"Rockoon on one machine {secrets.token_hex(4)}")

    def issue(
        self,
        name: str,
        *,
        hosts: Sequence[str] = THIS_MACHINE,
        valid: timedelta = timedelta(days=CERTIFICATE_DAYS),
        file_name: str | None = None,
        usage: "x509.ObjectIdentifier | None" = None,
    ) -> Issued:
        """Issue a certificate; an earlier one with this name is replaced.

        Args:
            name: common name.
            hosts: DNS names and IP addresses in the certificate.
            valid: validity from now; a negative value issues an expired certificate.
            file_name: name of the two files, without suffix; by default `name`.
            usage: the only permitted usage, as `ExtendedKeyUsageOID.CLIENT_AUTH`; None permits all.
        """
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        issuer = x509.load_pem_x509_certificate(self.ca.read_bytes())
        signer = serialization.load_pem_private_key(self._key_path.read_bytes(), None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey)
        until = datetime.now(UTC) + valid
        names = x509.SubjectAlternativeName([general_name(host) for host in hosts])
        extensions: list[tuple[x509.ExtensionType, bool]] = [(names, False)]
        if usage is not None:
            extensions.append((x509.ExtendedKeyUsage([usage]), False))
        certificate = signed(common_name(name), issuer.subject, key, signer, until, extensions)
        stem = self._directory / (file_name or name)
        issued = Issued(stem.with_name(f"{stem.name}.pem"), stem.with_name(f"{stem.name}.key"))
        write(issued.key, private_pem(key), 0o600)
        write(issued.certificate, certificate, 0o644)
        return issued

    @property
    def _key_path(self) -> Path:
        return self._directory / "ca.key"

    def _create_authority(self, common: str) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        name = common_name(common)
        until = datetime.now(UTC) + timedelta(days=AUTHORITY_DAYS)
        itself = x509.BasicConstraints(ca=True, path_length=0)
        write(self._key_path, private_pem(key), 0o600)
        write(self.ca, signed(name, name, key, key, until, [(itself, True)]), 0o644)


def signed(
    subject: "x509.Name",
    issuer: "x509.Name",
    key: "EllipticCurvePrivateKey",
    signer: "EllipticCurvePrivateKey",
    until: datetime,
    extensions: "Sequence[tuple[x509.ExtensionType, bool]]",
) -> bytes:
    """Return a signed certificate in PEM; each extension has a flag: True if it is critical."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(datetime.now(UTC), until) - BEFORE_NOW)
        .not_valid_after(until)
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    certificate = builder.sign(signer, hashes.SHA256())
    return certificate.public_bytes(serialization.Encoding.PEM)


def private_pem(key: "EllipticCurvePrivateKey") -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def common_name(name: str) -> "x509.Name":
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def general_name(host: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def write(path: Path, content: bytes, mode: int) -> None:
    """Replace a file atomically."""
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
    unfinished.replace(path)


MODES = ("off", "on", "mutual")
CLIENT = "client"
# Folder of all certificates in the cluster's directory.
FOLDER = "tls"
GATEWAY = "gateway"
RENEWAL_SECONDS = 30 * 86_400.0


class Encryption:
    """Certificates of a local cluster, issued again at every start.

    Args:
        directory: directory of the certificates; its authority stays the same.
        mode: "on" or "mutual", as the services' setting `tls`.

    Raises:
        LocalClusterError: the mode is invalid, or the `cryptography` package is not installed.
    """

    def __init__(self, directory: Path, mode: str) -> None:
        if mode not in MODES[1:]:
            raise LocalClusterError(f"tls = {mode!r}: it must be one of {', '.join(MODES)}")
        self._mutual = mode == "mutual"
        self._mode = mode
        self.authority = Authority(directory)
        self.client = self._tls(self.authority.issue(CLIENT))

    def _tls(self, own: Issued) -> Tls:
        ca = self.authority.ca
        return Tls(ca, own.certificate, own.key) if self._mutual else Tls(ca)

    def service_settings(self, name: str, kind: NodeKind, log: str = "") -> dict[str, object]:
        """Return the TLS settings of a service, for its command line.

        Args:
            name, kind: name and kind of the node.
            log: for a replica, the name of its log, by which nameservers and replicas call it.
        """
        names = dict.fromkeys((name, log or name, *THIS_MACHINE))
        own = self.authority.issue(name, hosts=tuple(names))
        settings: dict[str, object] = {
            "tls": self._mode,
            "tls_certificate": own.certificate,
            "tls_key": own.key,
            "tls_ca": self.authority.ca,
        }
        if kind is NodeKind.GATEWAY:
            # RocketMQ's clients have no certificate.
            settings |= {"tls": "on", "cluster_tls": self._mode}
        if kind is NodeKind.NAMESERVER:
            settings |= {"etcd_tls": "on", "etcd_tls_ca": self.authority.ca}
            if self._mutual:
                settings |= {"etcd_tls_certificate": own.certificate, "etcd_tls_key": own.key}
        return settings

    def etcd_flags(self) -> Sequence[str]:
        own = self.authority.issue("etcd")
        flags = [f"--cert-file={own.certificate}", f"--key-file={own.key}"]
        if self._mutual:
            flags += ["--client-cert-auth", f"--trusted-ca-file={self.authority.ca}"]
        return flags

    def context(self) -> ssl.SSLContext:
        """Return a TLS context for clients that do not use gRPC."""
        context = ssl.create_default_context(cafile=str(self.authority.ca))
        if self.client.certificate is not None and self.client.key is not None:
            context.load_cert_chain(self.client.certificate, self.client.key)
        return context


def open_gateway_settings(cluster_directory: Path) -> dict[str, object]:
    """Return the TLS settings of a gateway that accepts TLS and plain connections, for a cluster
    without TLS.

    The certificate is signed by an authority in the cluster's directory. It is issued again if less
    than `RENEWAL_SECONDS` are left, or if a name of this machine is missing. Raises
    LocalClusterError: a certificate is needed, and the `cryptography` package is missing.
    """
    directory = cluster_directory / FOLDER
    own = Issued(directory / f"{GATEWAY}.pem", directory / f"{GATEWAY}.key")
    host = socket.gethostname()
    names = (GATEWAY, *THIS_MACHINE, "::1", *([host] if host and host.isascii() else []))
    if not _is_usable(own, names):
        own = Authority(directory).issue(GATEWAY, hosts=tuple(dict.fromkeys(names)))
    return {
        "tls": "on",
        "plain_connections": True,
        "cluster_tls": "off",
        "tls_certificate": own.certificate,
        "tls_key": own.key,
    }


def _is_usable(own: Issued, names: Sequence[str]) -> bool:
    try:
        found = try_certificate(own.certificate, own.key)
    except PemError:
        return False
    # OpenSSL writes ::1 with all its groups.
    hosts = {"::1" if host == "0:0:0:0:0:0:0:1" else host for host in found.hosts}
    return found.seconds_left() > RENEWAL_SECONDS and hosts.issuperset(names)
