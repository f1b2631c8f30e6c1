"""Authentication: the caller, from the signature of a call."""

import datetime
from collections.abc import Callable, Sequence
from typing import Any

from rockoon_core.errors import Busy, NotReady
from rockoon_core.signature import ACCESS_METADATA_KEY, Signature
from rockoon_runtime.access.keys import KeyTable, KnownKey
from rockoon_runtime.access.refusals import refused
from rockoon_runtime.access.replays import NoRoom, UsedSignatures


class Authentication:
    """Takes each signature once, while it is recent.

    Args:
        keys: those in force, looked at again for every call.
        window_seconds: how far a signature's time may be from the clock.
        clock: epoch milliseconds, never going back.

    Attributes:
        audiences: the addresses at which this service is called, once known: a call is only taken
            when it was signed for one of them, so that what was overheard at one node is of no use
            at another. Empty where callers may have any address: nameservers, behind names and
            balancers.
    """

    def __init__(self, keys: KeyTable, window_seconds: float, clock: Callable[[], int]) -> None:
        self.audiences: set[str] = set()
        self._keys = keys
        self._clock = clock
        self._window_ms = round(window_seconds * 1000)
        self._used = UsedSignatures(self._window_ms)
        # What was used before is not known.
        self._started_ms = clock()

    def admit(
        self, method: str, metadata: Sequence[tuple[str, Any]], body: bytes | None
    ) -> tuple[KnownKey, bytes]:
        """Who is calling.

        Args:
            method: "/package.Service/Method".
            metadata: of the call.
            body: the request as it came; None for a stream of them.

        Returns:
            The key, and the verifier of the secret that signed.

        Raises:
            NotAuthenticated: the signature is missing, does not hold, is stale or has been used.
            NotReady: it cannot be told yet.
            Busy: too many callers have signed lately to remember one more.
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
            # Its time is told too: a caller whose clock is behind would be told this, at each
            # restart of a service, for as long as it is.
            raise NotReady(
                service="this service",
                reason="the call was signed before it started",
                server_ms=now_ms,
            )


def is_signed(metadata: Sequence[tuple[str, Any]]) -> bool:
    return any(name == ACCESS_METADATA_KEY for name, _ in metadata)


def signature_in(metadata: Sequence[tuple[str, Any]]) -> Signature:
    """Raises NotAuthenticated when there is none."""
    header = next((value for name, value in metadata if name == ACCESS_METADATA_KEY), None)
    if header is None:
        raise refused("no key", "the call bears no access key, and this cluster wants one")
    signature = Signature.parse(header) if isinstance(header, str) else None
    if signature is None:
        raise refused("wrong signature", "the signature is of no form that is known here")
    return signature


def clock_text(epoch_ms: int) -> str:
    """A moment for people and for comparing two of them: UTC, to the second."""
    try:
        moment = datetime.datetime.fromtimestamp(epoch_ms / 1000, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{epoch_ms} ms"
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")
