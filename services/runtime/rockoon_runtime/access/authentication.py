"""Authentication: finds the access key of a caller by the signature of a call."""

import datetime
from collections.abc import Callable, Sequence
from typing import Any

from rockoon_core.errors import Busy, NotReady
from rockoon_core.signature import ACCESS_METADATA_KEY, Signature
from rockoon_runtime.access.keys import KeyTable, KnownKey
from rockoon_runtime.access.replays import NoRoom, UsedSignatures
from rockoon_runtime.access.rules import refused


class Authentication:
    """Accepts each signature once, while it is recent.

    Args:
        keys: the current keys, read for every call.
        window_seconds: largest difference between a signature's time and the clock.
        clock: epoch milliseconds, never decreasing.

    Attributes:
        audiences: the addresses at which clients call this service, once known. A call must be
            signed for one of them, so that a signature recorded at one node is useless at another.
            Empty if clients may use any address: nameservers behind DNS names and load balancers.
    """

    def __init__(self, keys: KeyTable, window_seconds: float, clock: Callable[[], int]) -> None:
        self.audiences: set[str] = set()
        self._keys = keys
        self._clock = clock
        self._window_ms = round(window_seconds * 1000)
        self._used = UsedSignatures(self._window_ms)
        # Signatures used before the start are unknown.
        self._started_ms = clock()

    def admit(
        self, method: str, metadata: Sequence[tuple[str, Any]], body: bytes | None
    ) -> tuple[KnownKey, bytes]:
        """Authenticate a call.

        Args:
            method: "/package.Service/Method".
            metadata: metadata of the call.
            body: the request as received; None for a stream of requests.

        Returns:
            The key, and the verifier of the secret that signed.

        Raises:
            NotAuthenticated: the signature is missing, wrong, stale or already used.
            NotReady: the access keys are not loaded yet, or the call was signed before the start.
            Busy: the memory of recent callers is full.
        """
        signature = signature_in(metadata)
        now_ms = self._clock()
        key = self._signer(signature)
        verifiers = key.verifiers(now_ms)
        for held in verifiers:
            if signature.holds_for(held, method, body):
                break
        else:
            raise refused(
                "wrong signature",
                f"the signature of access key {key.key_id!r} does not hold: its secret is another "
                "one, or the request was changed on the way",
            )
        self._check_time(signature, now_ms)
        if self.audiences and signature.audience not in self.audiences:
            here = " or ".join(sorted(self.audiences))
            raise refused(
                "wrong signature",
                f"the call was signed for {signature.audience or 'nobody'}, and this is {here}",
            )
        try:
            is_new = self._used.admit(
                key.key_id, signature.instance, signature.counter, signature.time_ms, now_ms
            )
        except NoRoom:
            raise Busy(reason="more callers have signed lately than are remembered") from None
        if not is_new:
            raise refused("replayed", "the signature has been used before")
        return key, held

    def _signer(self, signature: Signature) -> KnownKey:
        key = self._keys.get(signature.key_id)
        if key is None and not self._keys.loaded:
            raise NotReady(service="this service", reason="it waits for the access keys")
        if key is None:
            raise refused("unknown key", f"there is no access key {signature.key_id!r}")
        if not key.enabled:
            raise refused("disabled key", f"access key {key.key_id!r} is disabled")
        return key

    def _check_time(self, signature: Signature, now_ms: int) -> None:
        apart_ms = now_ms - signature.time_ms
        if abs(apart_ms) > self._window_ms:
            raise refused(
                "stale",
                f"the call was signed at {clock_text(signature.time_ms)}, and the clock of this "
                f"service says {clock_text(now_ms)}: more than {self._window_ms / 1000:g} s apart. "
                "Set the clocks",
                server_ms=now_ms,
            )
        if signature.time_ms < self._started_ms:
            # Contains the server's time: a caller whose clock is slow would otherwise receive this
            # error at each restart of a service, until its clock passes the start.
            raise NotReady(
                service="this service",
                reason="the call was signed before it started",
                server_ms=now_ms,
            )


def is_signed(metadata: Sequence[tuple[str, Any]]) -> bool:
    return any(name == ACCESS_METADATA_KEY for name, _ in metadata)


def signature_in(metadata: Sequence[tuple[str, Any]]) -> Signature:
    """Raises NotAuthenticated if the metadata has no valid signature header."""
    header = next((value for name, value in metadata if name == ACCESS_METADATA_KEY), None)
    if header is None:
        raise refused("no key", "the call has no access key, and this cluster requires one")
    signature = Signature.parse(header) if isinstance(header, str) else None
    if signature is None:
        raise refused("wrong signature", "the format of the signature is unknown")
    return signature


def clock_text(epoch_ms: int) -> str:
    """A time as UTC text with seconds, for error texts that compare two clocks."""
    try:
        moment = datetime.datetime.fromtimestamp(epoch_ms / 1000, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{epoch_ms} ms"
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")
