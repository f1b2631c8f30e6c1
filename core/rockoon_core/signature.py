"""Signatures of calls: signing with an access key, and checking. Pure.

    client_key = HMAC-SHA256(secret, "rockoon access key 1")        never leaves the caller
    verifier   = SHA-256(client_key)                                what the cluster keeps
    signature  = client_key XOR HMAC-SHA256(verifier, text)         what a call carries
    text       = version, method, key id, time, instance, counter, audience, body

Who knows the verifier checks a signature: he takes the mask off and sees whether what is left
hashes to the verifier (the construction of SCRAM, RFC 5802). Who has read the verifier alone, in a
backup of etcd, cannot sign.

A call carries all of `text` but the method, which gRPC carries, and the body, in one entry of its
metadata, `rockoon-access`, fields separated by ";". `instance` and `counter` make every signature
another one; a server admits each once. The body is the SHA-256 of the request as it goes over the
wire; calls that send a stream of requests have none, and only TLS protects those.
"""

import hashlib
import hmac
import itertools
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

ACCESS_METADATA_KEY = "rockoon-access"
VERSION = "1"
VERIFIER_BYTES = hashlib.sha256().digest_size

# Whose calls services make to one another: signed with the cluster secret, allowed everything.
CLUSTER_KEY_ID = "rockoon"
KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

# Of a secret that somebody else made than `new_secret`: guessing it must not be worth trying.
SECRET_CHARACTERS_MIN = 24

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
    """Who calls: the name of an access key, and its secret, which no text of this object shows.

    Args:
        id: the key's name, 1 to 64 letters, digits and . _ -
        secret: as `rockoon access create` showed it, once.
    """

    id: str
    secret: str = field(repr=False)

    @property
    def fault(self) -> str:
        """Why it cannot be used; empty when it can."""
        if not KEY_ID.fullmatch(self.id):
            return f"{self.id!r} is no access key's name: 1 to 64 letters, digits and . _ -"
        if len(self.secret) < SECRET_CHARACTERS_MIN:
            return (
                f"the secret of access key {self.id!r} has {len(self.secret)} characters: "
                f"fewer than {SECRET_CHARACTERS_MIN} can be guessed"
            )
        return ""


def new_secret() -> str:
    """A secret that nobody guesses: 32 random bytes as text."""
    return secrets.token_urlsafe(32)


def verifier_of(secret: str) -> bytes:
    """What the cluster keeps of a secret."""
    return hashlib.sha256(client_key_of(secret)).digest()


def client_key_of(secret: str) -> bytes:
    return hmac.digest(secret.encode(), _PURPOSE, "sha256")


@dataclass(frozen=True, slots=True)
class Signature:
    """What a call carries, taken apart; nothing in it is believed before `holds_for`."""

    key_id: str
    time_ms: int
    instance: str
    counter: int
    audience: str
    proof: bytes

    @classmethod
    def parse(cls, header: str) -> "Signature | None":
        """None when it is not of the form."""
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
        """Whether who signed had the verifier's secret; compared in constant time.

        Args:
            verifier: of the key.
            method: "/package.Service/Method", as called.
            body: the request as it came; None for a stream of them.
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


def steady_clock() -> Callable[[], int]:
    """Epoch milliseconds that never jump: the wall clock as it is now, then elapsed time.

    A clock that is set back while a process runs would make old signatures young again.
    """
    # Counts through a machine's sleep, where the system has such a clock.
    source = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    offset_ns = time.time_ns() - time.clock_gettime_ns(source)
    return lambda: (time.clock_gettime_ns(source) + offset_ns) // 1_000_000


class Credentials:
    """An access key in use: signs, by a clock that the servers' own may correct.

    Args:
        key: whose.
        clock: epoch milliseconds.

    Raises:
        ValueError: the key cannot be used; the text says why.
    """

    def __init__(self, key: AccessKey, clock: Callable[[], int] | None = None) -> None:
        if key.fault:
            raise ValueError(key.fault)
        self.key_id = key.id
        self._client_key = client_key_of(key.secret)
        self.verifier = hashlib.sha256(self._client_key).digest()
        self._clock = clock or steady_clock()
        self._correction_ms = 0

    def __repr__(self) -> str:
        return f"Credentials(key_id={self.key_id!r})"

    def correct(self, server_ms: int) -> bool:
        """A server refused because of the time; sign by its clock from now on.

        Returns:
            Whether that changes anything: when not, trying again is no use.
        """
        correction_ms = server_ms - self._clock()
        if abs(correction_ms - self._correction_ms) < 1_000:
            return False
        self._correction_ms = correction_ms
        return True

    def signer(self, audience: str) -> "Signer":
        """For the calls of one channel.

        Args:
            audience: the address that it dials.
        """
        return Signer(self, audience)

    def sign(
        self, method: str, instance: str, counter: int, audience: str, body: bytes | None
    ) -> str:
        time_ms = self._clock() + self._correction_ms
        text = signed_text(method, self.key_id, time_ms, instance, counter, audience, body)
        proof = xor(self._client_key, hmac.digest(self.verifier, text, "sha256")).hex()
        return f"{VERSION};{self.key_id};{time_ms};{instance};{counter};{audience};{proof}"


class Signer:
    """Signs the calls of one channel: one instance, one counter, so that they arrive in order."""

    def __init__(self, credentials: Credentials, audience: str) -> None:
        self._credentials = credentials
        self._audience = audience
        self._instance = secrets.token_hex(8)
        # Threads of blocking channels share it. Taking the next is one step, so that no two calls
        # bear the same count: the second would be refused as a replay of the first.
        self._counts = itertools.count(1)

    def entry(self, method: str, body: bytes | None) -> tuple[str, str]:
        """The metadata entry for one call.

        Args:
            method: "/package.Service/Method".
            body: the request as it goes out; None for a stream of them.
        """
        count = next(self._counts)
        header = self._credentials.sign(method, self._instance, count, self._audience, body)
        return ACCESS_METADATA_KEY, header
