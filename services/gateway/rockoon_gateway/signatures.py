"""Signatures of RocketMQ's clients: HMAC-SHA1 over a header, with an access key's secret.

    authorization: MQv2-HMAC-SHA1 Credential=KEY[/...], SignedHeaders=x-mq-date-time, Signature=HEX

The signed text is only the raw value of x-mq-date-time, which is not checked as a time: an
intercepted signature never expires, so connections should be encrypted.

The cluster stores a verifier of each secret, which checks Rockoon's own signatures; an HMAC needs
the secret itself. So the gateway has a file of secrets. The cluster decides about permissions and
validity of a key, and a secret is only accepted if it is the key's present one.
"""

import hashlib
import hmac
import logging
import time
from collections.abc import Callable
from pathlib import Path

from rockoon_core.signature import verifier_of
from rockoon_gateway.codes import Refusal
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code
from rockoon_runtime.access.keys import KeyTable, KnownKey
from rockoon_runtime.settings import SettingsError

log = logging.getLogger(__name__)

SCHEME = "MQv2-HMAC-SHA1"
LOOK_SECONDS = 1.0
FILE_BYTES_MAX = 16 << 20


def signature_of(secret: str, date_time: str) -> str:
    """Return the hexadecimal signature of a header's value.

    Source: RocketMQ's clients, Signature#sign; they differ in the case of the digits.
    """
    return hmac.digest(secret.encode(), date_time.encode(), hashlib.sha1).hex()


def parsed(header: str) -> tuple[str, str]:
    """Return access key and signature of a header; both empty if it is malformed."""
    scheme, _, rest = header.partition(" ")
    if scheme != SCHEME:
        return "", ""
    fields = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    # Go and C++ append region and service to the key.
    return fields.get("Credential", "").partition("/")[0], fields.get("Signature", "")


class SecretFile:
    """Reads secrets of access keys from a file, again after each change.

    Args:
        path: lines "NAME SECRET"; empty lines and lines that begin with "#" are ignored.

    Raises:
        SettingsError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = (0, 0)
        self._secrets: dict[str, tuple[str, bytes]] = {}
        self._look_after = 0.0
        try:
            self._read()
        except (OSError, ValueError) as failure:
            raise SettingsError(f"client_secrets: {path}: {failure}") from failure

    def get(self, key_id: str) -> tuple[str, bytes] | None:
        """Return a key's secret and verifier; None if the file has none."""
        now = time.monotonic()
        if now >= self._look_after:
            self._look_after = now + LOOK_SECONDS
            try:
                self._read()
            except (OSError, ValueError) as failure:
                log.warning(
                    "could not read client_secrets %s: %s; keeping the former ones",
                    *(self._path, failure),
                )
        return self._secrets.get(key_id)

    def _read(self) -> None:
        status = self._path.stat()
        seen = (status.st_mtime_ns, status.st_size)
        if seen == self._seen:
            return
        secrets = {}
        with self._path.open() as stream:
            for number, line in enumerate(stream.read(FILE_BYTES_MAX).splitlines(), 1):
                words = line.split()
                if not words or words[0].startswith("#"):
                    continue
                if len(words) != 2:
                    raise ValueError(f"line {number} is not 'NAME SECRET'")
                secrets[words[0]] = (words[1], verifier_of(words[1]))
        self._secrets, self._seen = secrets, seen


class Signatures:
    """Checks the signatures of clients' calls with the secrets of their access keys.

    Args:
        keys: the cluster's access keys; None if access is off: calls need no key.
        secrets: of keys that clients of the gateway use.
        clock: epoch milliseconds.
        optional: accept unsigned calls.
    """

    def __init__(
        self,
        keys: KeyTable | None,
        secrets: SecretFile | None,
        clock: Callable[[], int],
        *,
        optional: bool = False,
    ) -> None:
        self._keys = keys
        self._secrets = secrets
        self._clock = clock
        self._optional = optional
        self.refused = 0
        """Number of calls refused since the start of the process."""

    def checked(self, authorization: str, date_time: str) -> KnownKey | None:
        """Return a call's key; None if calls need none. Raises Refusal: UNAUTHORIZED."""
        if self._keys is None:
            # Some clients always sign, with empty keys.
            return None
        key_id, signature = parsed(authorization)
        if not key_id:
            if self._optional and not signature:
                return None
            raise self._refusal("the call is not signed with an access key")
        known = self._keys.get(key_id)
        found = None if self._secrets is None else self._secrets.get(key_id)
        if known is None or found is None:
            raise self._refusal(f"access key {key_id!r} is not known here")
        secret, verifier = found
        if not known.enabled or verifier not in known.verifiers(self._clock()):
            raise self._refusal(f"access key {key_id!r} is disabled, or its secret has changed")
        if not hmac.compare_digest(
            # As bytes: texts must be ASCII.
            signature_of(secret, date_time).encode(),
            signature.lower().encode(),
        ):
            raise self._refusal(f"the signature does not match access key {key_id!r}")
        return known

    def _refusal(self, text: str) -> Refusal:
        self.refused += 1
        return Refusal(Code.UNAUTHORIZED, text)
