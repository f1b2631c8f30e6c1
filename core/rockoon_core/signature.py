"""Signatures of calls with an access key, and their checks. Pure.

    client_key = HMAC-SHA256(secret, "rockoon access key 1")        stays at the caller
    verifier   = SHA-256(client_key)                                stored by the cluster
    signature  = client_key XOR HMAC-SHA256(verifier, text)         part of a call
    text       = version, method, key id, time, instance, counter, audience, body

A server with the verifier removes the mask of a signature and checks that the result hashes to the
verifier (the construction of SCRAM, RFC 5802). An attacker who has only read the verifier, in a
backup of etcd, cannot sign.

A call has all of `text` except the method, which gRPC sends, and the body, in one entry of its
metadata, `rockoon-access`, fields separated by ";". `instance` and `counter` make each signature
unique; a server accepts each once. The body is the SHA-256 of the serialized request; calls that
send a stream of requests have none, and only TLS protects those.
"""

import hashlib
import hmac
import itertools
import logging
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from rockoon_core.clock import steady_clock

log = logging.getLogger(__name__)

ACCESS_METADATA_KEY = "rockoon-access"
VERSION = "1"
VERIFIER_BYTES = hashlib.sha256().digest_size

# Key of the services' own calls: signed with the cluster secret, all permissions.
CLUSTER_KEY_ID = "rockoon"
KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

# Minimum for a secret that was not made by `new_secret`: guessing it must be infeasible.
SECRET_CHARACTERS_MIN = 24
# Least interval of checks whether a secret was renewed.
RENEWAL_MS = 1_000
# How long calls that were signed with the former secret may arrive.
RECENT_MS = 10_000

_PURPOSE = b"rockoon access key 1"
_NO_BODY = "-"
_SIGNATURE = re.compile(
    rf"{VERSION};(?P<key_id>[A-Za-z0-9._-]{{1,64}});(?P<time_ms>\d{{1,15}});"
    r"(?P<instance>[0-9a-f]{16});(?P<counter>\d{1,15});(?P<audience>[^;\s]{0,300});"
    r"(?P<proof>[0-9a-f]{64})",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class AccessKey:
    """Name and secret of an access key; no text of this object shows the secret.

    Args:
        id: the key's name, 1 to 64 letters, digits and . _ -
        secret: as `rockoon access create` showed it, once.
        secret_file: file that the secret was read from, and is read from again when the file
            changes; empty: the secret does not change.
    """

    id: str
    secret: str = field(repr=False)
    secret_file: str = ""

    @property
    def fault(self) -> str:
        """Return why the key cannot be used; empty if it can."""
        if not KEY_ID.fullmatch(self.id):
            return f"{self.id!r} is not an access key's name: 1 to 64 letters, digits and . _ -"
        fault = secret_fault(self.secret)
        return f"the secret of access key {self.id!r} has {fault}" if fault else ""


def secret_fault(secret: str) -> str:
    """Return why a secret is not safe, as the object of "has"; empty if it is safe."""
    if len(secret) < SECRET_CHARACTERS_MIN:
        return f"{len(secret)} characters: fewer than {SECRET_CHARACTERS_MIN} can be guessed"
    return ""


def new_secret() -> str:
    """Return a secret that cannot be guessed: 32 random bytes as text."""
    return secrets.token_urlsafe(32)


def verifier_of(secret: str) -> bytes:
    """Return the verifier of a secret, which the cluster stores."""
    return hashlib.sha256(client_key_of(secret)).digest()


def client_key_of(secret: str) -> bytes:
    return hmac.digest(secret.encode(), _PURPOSE, "sha256")


@dataclass(frozen=True, slots=True)
class Signature:
    """Parsed fields of a signature; `holds_for` verifies them."""

    key_id: str
    time_ms: int
    instance: str
    counter: int
    audience: str
    proof: bytes

    @classmethod
    def parse(cls, header: str) -> "Signature | None":
        """Parse a header; None if it is malformed."""
        found = _SIGNATURE.fullmatch(header)
        if found is None:
            return None
        return cls(
            found["key_id"],
            int(found["time_ms"]),
            found["instance"],
            int(found["counter"]),
            found["audience"],
            bytes.fromhex(found["proof"]),
        )

    def holds_for(self, verifier: bytes, method: str, body: bytes | None) -> bool:
        """Return whether the signer had the secret of a verifier; compared in constant time.

        Args:
            verifier: stored verifier of the access key.
            method: "/package.Service/Method", as called.
            body: the received request; None for a stream.
        """
        text = signed_text(
            method, self.key_id, self.time_ms, self.instance, self.counter, self.audience, body
        )
        client_key = xor(self.proof, hmac.digest(verifier, text, "sha256"))
        return hmac.compare_digest(hashlib.sha256(client_key).digest(), verifier)


def signed_text(
    method: str,
    key_id: str,
    time_ms: int,
    instance: str,
    counter: int,
    audience: str,
    body: bytes | None,
) -> bytes:
    digest = _NO_BODY if body is None else hashlib.sha256(body).hexdigest()
    return (
        f"{VERSION}\n{method}\n{key_id}\n{time_ms}\n{instance}\n{counter}\n{audience}\n{digest}"
    ).encode()


def xor(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one) ^ int.from_bytes(other)).to_bytes(len(one))


class Credentials:
    """An access key in use: signs calls, by a clock that servers may correct.

    Args:
        key: the access key.
        clock: epoch milliseconds.
        renewed: returns the key's present secret, for example from a file; called before a call is
            signed, at most once a second. None: the secret does not change.

    Raises:
        ValueError: the key cannot be used; the text states why.
    """

    def __init__(
        self,
        key: AccessKey,
        clock: Callable[[], int] | None = None,
        renewed: Callable[[], str] | None = None,
    ) -> None:
        if key.fault:
            raise ValueError(key.fault)
        self.key_id = key.id
        self._secret = key.secret
        # One tuple: a thread that signs never sees one half of a renewed key.
        self._keys = keys_of(key.secret)
        self._renewed = renewed
        self._next_renewal_ms = 0
        self._renewed_ms = -RECENT_MS
        self._clock = clock or steady_clock()
        self._correction_ms = 0

    @property
    def verifier(self) -> bytes:
        """Verifier of the secret that signs."""
        return self._keys[1]

    def __repr__(self) -> str:
        return f"Credentials(key_id={self.key_id!r})"

    def correct(self, server_ms: int) -> bool:
        """Sign by a server's clock from now on, after the server refused because of the time.

        Returns:
            Whether that changes anything; if not, repeating the call is useless.
        """
        correction_ms = server_ms - self._clock()
        if abs(correction_ms - self._correction_ms) < 1_000:
            return False
        self._correction_ms = correction_ms
        return True

    def signer(self, audience: str) -> "Signer":
        """Return a signer for the calls of one channel, whose address is `audience`."""
        return Signer(self, audience)

    def sign(
        self, method: str, instance: str, counter: int, audience: str, body: bytes | None
    ) -> str:
        now_ms = self._clock()
        time_ms = now_ms + self._correction_ms
        if self._renewed is not None and now_ms >= self._next_renewal_ms:
            self._next_renewal_ms = now_ms + RENEWAL_MS
            self._renew(self._renewed())
        client_key, verifier = self._keys
        text = signed_text(method, self.key_id, time_ms, instance, counter, audience, body)
        proof = xor(client_key, hmac.digest(verifier, text, "sha256")).hex()
        return f"{VERSION};{self.key_id};{time_ms};{instance};{counter};{audience};{proof}"

    def was_renewed(self) -> bool:
        """Read the secret again; return whether it has changed now or shortly before."""
        if self._renewed is None:
            return False
        self._renew(self._renewed())
        return self._clock() < self._renewed_ms + RECENT_MS

    def _renew(self, secret: str) -> None:
        if secret == self._secret:
            return
        self._secret = secret
        if fault := AccessKey(self.key_id, secret).fault:
            log.warning("a renewed secret cannot be used, the former one stays in use: %s", fault)
        else:
            self._keys = keys_of(secret)
            self._renewed_ms = self._clock()
            log.info("calls are signed with the renewed secret of access key %r", self.key_id)


def keys_of(secret: str) -> tuple[bytes, bytes]:
    """Return the client key and the verifier of a secret."""
    client_key = client_key_of(secret)
    return client_key, hashlib.sha256(client_key).digest()


class Signer:
    """Signs the calls of one channel. A random instance id and a counter make each signature
    unique."""

    def __init__(self, credentials: Credentials, audience: str) -> None:
        self._credentials = credentials
        self._audience = audience
        self._instance = secrets.token_hex(8)
        # Threads of blocking channels share it. `next` is atomic, so no two calls have the same
        # count: the second would be refused as a replay of the first.
        self._counts = itertools.count(1)

    def entry(self, method: str, body: bytes | None) -> tuple[str, str]:
        """Return the metadata entry for one call.

        Args:
            method: "/package.Service/Method".
            body: the serialized request; None for a stream.
        """
        count = next(self._counts)
        header = self._credentials.sign(method, self._instance, count, self._audience, body)
        return ACCESS_METADATA_KEY, header
