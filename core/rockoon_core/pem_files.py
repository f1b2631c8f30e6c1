"""Certificates and keys in PEM files: reads, verifies, and reloads them after a renewal.

- The files in use always work: an unusable renewal is logged, and the former ones stay in use.
- Keys are neither kept longer than needed nor printed.
"""

import logging
import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

log = logging.getLogger(__name__)

Made = TypeVar("Made")

# Enough for a handshake between two ends in memory; TLS 1.3 needs two.
_ROUNDS_MAX = 6
# X509_V_FLAG_NO_CHECK_TIME of OpenSSL, which Python's ssl does not name: the certificate is
# inspected, not trusted, and its expiry is to be read.
_NO_CHECK_TIME = 0x200000


class PemError(ValueError):
    """Raised if a certificate, key or CA file cannot be used; the text has file and reason, never a
    key."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """Fields of a certificate.

    Attributes:
        hosts: subject alternative names that are DNS names or IP addresses.
    """

    path: Path
    name: str
    expires: datetime
    hosts: tuple[str, ...] = ()

    def seconds_left(self) -> float:
        """Seconds until the certificate expires; negative after that."""
        return (self.expires - datetime.now(UTC)).total_seconds()

    def __str__(self) -> str:
        return (
            f"{self.path} ({self.name or 'no common name'}, until {self.expires:%Y-%m-%d %H:%M}Z)"
        )


def read(path: Path) -> bytes:
    """Read a file. Raises PemError."""
    try:
        return path.read_bytes()
    except OSError as failure:
        raise PemError(f"{path} cannot be read: {failure.strerror}") from None


def try_certificate(certificate: Path, key: Path, *, as_client: bool = False) -> Certificate:
    """Verify a certificate by a TLS handshake in memory, in which it is used by its owner and
    checked by a peer.

    The handshake shows that certificate and key match and that TLS can use them, and returns the
    certificate as a peer sees it.

    Args:
        certificate: a PEM file, followed by the chain.
        key: key of the certificate, not encrypted, because gRPC supports no other.
        as_client: use it as a client certificate; default: as a server's. A certificate may be
            limited to one use.

    Raises:
        PemError: the handshake failed, or the certificate has expired.
    """
    owner = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if as_client else ssl.PROTOCOL_TLS_SERVER)
    try:
        # Without a password, OpenSSL would prompt for one at the terminal.
        owner.load_cert_chain(certificate, key, password=lambda: b"")
    except ssl.SSLError as failure:
        raise PemError(f"{certificate} and the key {key}: {_plain(failure)}") from None
    except OSError as failure:
        raise PemError(
            f"{certificate} or its key {key} cannot be read: {failure.strerror}"
        ) from None
    seen = _as_a_peer_sees(owner, certificate, key, as_client=as_client)
    names = [value for part in seen["subject"] for kind, value in part if kind == "commonName"]
    expires = datetime.fromtimestamp(ssl.cert_time_to_seconds(seen["notAfter"]), UTC)
    hosts = tuple(value for _, value in seen.get("subjectAltName", ()))
    found = Certificate(certificate, names[0] if names else "", expires, hosts)
    if found.seconds_left() <= 0:
        raise PemError(f"{certificate} expired at {expires:%Y-%m-%d %H:%M}Z")
    return found


def _as_a_peer_sees(
    owner: ssl.SSLContext, certificate: Path, key: Path, *, as_client: bool
) -> dict[str, Any]:
    peer = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if as_client else ssl.PROTOCOL_TLS_CLIENT)
    peer.check_hostname = False
    peer.verify_mode = ssl.CERT_REQUIRED
    peer.load_verify_locations(certificate)
    peer.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags(_NO_CHECK_TIME)
    if as_client:
        # A server needs a certificate too; any will do, as it is not verified here.
        peer.load_cert_chain(certificate, key, password=lambda: b"")
        owner.check_hostname = False
        owner.verify_mode = ssl.CERT_NONE
    to_peer, to_owner = ssl.MemoryBIO(), ssl.MemoryBIO()
    own_end = owner.wrap_bio(to_owner, to_peer, server_side=not as_client)
    peer_end = peer.wrap_bio(to_peer, to_owner, server_side=as_client)
    for _ in range(_ROUNDS_MAX):
        for end in (own_end, peer_end):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as failure:
                raise PemError(f"{certificate}: {_plain(failure)}") from None
    return peer_end.getpeercert() or {}


def try_authorities(path: Path) -> None:
    """Raise PemError if a PEM file contains no CA certificate."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError as failure:
        raise PemError(f"{path} holds no certificate: {_plain(failure)}") from None
    except OSError as failure:
        raise PemError(f"{path} cannot be read: {failure.strerror}") from None


def _plain(failure: ssl.SSLError) -> str:
    if isinstance(failure, ssl.SSLCertVerificationError):
        return failure.verify_message
    reason = failure.reason or failure.strerror or "not PEM"
    return reason.lower().replace("_", " ")


class RenewedFiles(Generic[Made]):
    """An object made from PEM files, which is made again when the files change.

    A check costs a `stat` per file. It may be called from any thread.

    Args:
        paths: the files.
        make: reads the files and returns the object; called in the thread of the check.

    Raises:
        PemError: the initial files cannot be used.

    Attributes:
        value: the object made from the newest usable files.
        version: number of objects made so far.
    """

    def __init__(self, paths: Sequence[Path], make: Callable[[], Made]) -> None:
        self._paths = tuple(paths)
        self._make = make
        self._checking = threading.Lock()
        self._stamp = self._stamps()
        self.value = make()
        self.version = 1

    def reload(self) -> bool:
        """Reload the files if they have changed; return whether `value` was replaced."""
        if not self._checking.acquire(blocking=False):
            # Another thread checks now.
            return False
        try:
            return self._reload()
        finally:
            self._checking.release()

    def _reload(self) -> bool:
        stamp = self._stamps()
        if stamp == self._stamp:
            return False
        try:
            value = self._make()
        except PemError as reason:
            if stamp == self._stamps():
                # Logged once. If the files change again, the renewal is not complete.
                self._stamp = stamp
                log.warning(
                    "a renewed file cannot be used, the former one stays in use: %s", reason
                )
            return False
        if stamp != self._stamps():
            return False
        self._stamp, self.value = stamp, value
        self.version += 1
        return True

    def _stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(map(_stamp, self._paths))


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
