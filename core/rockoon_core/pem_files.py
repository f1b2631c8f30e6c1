"""Certificates and keys in files: read, tried out, and read again when they are renewed.

- What is in force always works: a renewal that does not is told in the log, and the former goes on.
- Nothing here holds or prints a key for longer than it takes to hand it on.
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
# X509_V_FLAG_NO_CHECK_TIME of OpenSSL, which Python's ssl does not name: a certificate is looked
# at, not trusted, and when it ends is what is to be found out.
_NO_CHECK_TIME = 0x200000


class PemError(ValueError):
    """A certificate, key or CA file cannot be used; the text says which and why, never a key."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a certificate says of itself.

    Attributes:
        path: where it was read.
        name: its common name; empty when it has none.
        expires: the last moment at which it holds.
        hosts: its alternative names that are DNS names or IP addresses.
    """

    path: Path
    name: str
    expires: datetime
    hosts: tuple[str, ...] = ()

    def seconds_left(self) -> float:
        """Until it expires; negative when it has."""
        return (self.expires - datetime.now(UTC)).total_seconds()

    def __str__(self) -> str:
        return (
            f"{self.path} ({self.name or 'no common name'}, until {self.expires:%Y-%m-%d %H:%M}Z)"
        )


def read(path: Path) -> bytes:
    """A file's bytes.

    Raises:
        PemError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as failure:
        raise PemError(f"{path} cannot be read: {failure.strerror}") from None


def try_certificate(certificate: Path, key: Path, *, as_client: bool = False) -> Certificate:
    """Shake hands in memory, as the owner of this certificate and as its peer.

    That shows that certificate and key belong together and that TLS can use them, and gives what a
    peer will see.

    Args:
        certificate: a PEM file, the chain behind it.
        key: the certificate's, not encrypted: gRPC takes no other.
        as_client: it is shown to servers; else to callers. A certificate may be for one alone.

    Raises:
        PemError: they do not, or the certificate has expired.
    """
    owner = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if as_client else ssl.PROTOCOL_TLS_SERVER)
    try:
        # Without a password given, OpenSSL would ask for one at the terminal.
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
        # A server needs a certificate too: any does, as nobody looks at it here.
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
    """See that a file holds certificates of authorities.

    Raises:
        PemError: it does not.
    """
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
    """Something made of files, and made again when they change.

    Looking takes a `stat` per file. It may be done from any thread.

    Args:
        paths: the files.
        make: reads them and makes it; called in the thread that looks.

    Raises:
        PemError: what is there at first cannot be used.

    Attributes:
        value: what was made last of files that could be used.
        version: counts what was made.
    """

    def __init__(self, paths: Sequence[Path], make: Callable[[], Made]) -> None:
        self._paths = tuple(paths)
        self._make = make
        self._looking = threading.Lock()
        self._stamp = self._stamps()
        self.value = make()
        self.version = 1

    def look(self) -> bool:
        """Take over what is new in the files; returns whether there was."""
        if not self._looking.acquire(blocking=False):
            # Somebody is at it.
            return False
        try:
            return self._look()
        finally:
            self._looking.release()

    def _look(self) -> bool:
        stamp = self._stamps()
        if stamp == self._stamp:
            return False
        try:
            value = self._make()
        except PemError as reason:
            if stamp == self._stamps():
                # Told once. Files that go on changing are a renewal under way.
                self._stamp = stamp
                log.warning("a renewal is not taken, what was in force goes on: %s", reason)
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
