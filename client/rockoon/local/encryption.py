"""TLS of a local cluster: its authority, and the TLS settings of each node."""

import socket
import ssl
from collections.abc import Sequence
from pathlib import Path

from rockoon.local.authority import THIS_MACHINE, Authority, Issued
from rockoon.local.process import LocalClusterError, NodeKind
from rockoon.net.tls import Tls
from rockoon_core.pem_files import PemError, try_certificate

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
            name, kind: of the node.
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

    The certificate is signed by an authority in the cluster's directory. It is issued again if
    less than `RENEWAL_SECONDS` are left, or if a name of this machine is missing.

    Raises:
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
