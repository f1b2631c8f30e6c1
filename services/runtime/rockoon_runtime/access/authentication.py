"""Authentication: finds the access key of a caller by the signature of a call, once for each."""

import datetime
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rockoon_core.errors import Busy, NotReady
from rockoon_core.signature import ACCESS_METADATA_KEY, CLUSTER_KEY_ID, Signature
from rockoon_runtime.access.keys import KeyTable, KnownKey
from rockoon_runtime.access.rules import refused

COUNTS_REMEMBERED = 4096
_MASK = (1 << COUNTS_REMEMBERED) - 1

CHANNELS_MAX = 100_000
# Maximum of one key, so that other keys find room.
KEY_CHANNELS_MAX = 20_000
SWEEP_MS = 1_000


class NoRoom(Exception):
    """The table of recent channels is full."""


@dataclass(slots=True)
class _SignatureHistory:
    """Used signatures of one channel."""

    highest: int
    # Bit i: count `highest` - i has been used.
    used: int
    # The latest time of its signatures.
    latest_ms: int


class UsedSignatures:
    """Which signatures have been used. No I/O; memory is bounded.

    Invariants:

    1. A signature is admitted once. A caller's channel counts its calls. The table keeps the
       highest count of each channel, and one bit for each count in a window below it (the window of
       IPsec, RFC 4303 section 3.4.3). A count below the window is refused, used or not.
    2. A channel is removed only when all its signatures are stale. Until then each of its
       signatures is remembered or below the window. If the table is full, new channels are refused
       and old ones stay. The cluster key is always admitted: nodes need it to return, and operators
       need it to disable the keys that fill the table.

    Args:
        window_ms: largest difference between a signature's time and the clock.
        channels_max, key_channels_max: channels remembered in all, and of one key.
    """

    def __init__(
        self,
        window_ms: int,
        *,
        channels_max: int = CHANNELS_MAX,
        key_channels_max: int = KEY_CHANNELS_MAX,
    ) -> None:
        self._window_ms = window_ms
        self._channels_max = channels_max
        self._key_channels_max = key_channels_max
        self._channels: dict[tuple[str, str], _SignatureHistory] = {}
        self._of_key: Counter[str] = Counter()
        self._sweep_ms = max(SWEEP_MS, window_ms // 8)
        self._sweep_at_ms = 0

    def __len__(self) -> int:
        return len(self._channels)

    def admit(self, key_id: str, instance: str, counter: int, signed_ms: int, now_ms: int) -> bool:
        """Use a verified signature whose time is within the window.

        Returns:
            False if it was used before, or is below the window of its channel.

        Raises:
            NoRoom: its channel is new and the table is full.
        """
        # If the clock was set back, the next sweep would be delayed by the same time.
        if now_ms >= self._sweep_at_ms or now_ms < self._sweep_at_ms - self._sweep_ms:
            self._remove_stale(now_ms)
        key = (key_id, instance)
        known = self._channels.get(key)
        if known is None:
            full = len(self._channels) >= self._channels_max and key_id != CLUSTER_KEY_ID
            if full or self._of_key[key_id] >= self._key_channels_max:
                raise NoRoom
            self._channels[key] = _SignatureHistory(counter, 1, signed_ms)
            self._of_key[key_id] += 1
            return True
        ahead = counter - known.highest
        if ahead > 0:
            # A shift by the count itself would let a caller request all memory.
            known.used = (known.used << min(ahead, COUNTS_REMEMBERED) | 1) & _MASK
            known.highest = counter
        else:
            bit = 1 << -ahead if -ahead < COUNTS_REMEMBERED else 0
            if not bit or known.used & bit:
                return False
            known.used |= bit
        known.latest_ms = max(known.latest_ms, signed_ms)
        return True

    def _remove_stale(self, now_ms: int) -> None:
        """Visits all channels; called rarely, so that many calls share the cost."""
        self._sweep_at_ms = now_ms + self._sweep_ms
        over = now_ms - self._window_ms
        gone = [key for key, channel in self._channels.items() if channel.latest_ms < over]
        for key in gone:
            del self._channels[key]
            self._of_key[key[0]] -= 1
        self._of_key = +self._of_key


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
    """Return the signature in the metadata of a call. Raises NotAuthenticated if there is none, or
    an invalid one."""
    header = next((value for name, value in metadata if name == ACCESS_METADATA_KEY), None)
    if header is None:
        raise refused("no key", "the call has no access key, and this cluster requires one")
    signature = Signature.parse(header) if isinstance(header, str) else None
    if signature is None:
        raise refused("wrong signature", "the format of the signature is unknown")
    return signature


def clock_text(epoch_ms: int) -> str:
    """Return a time as UTC text with seconds, for error texts that compare two clocks."""
    try:
        moment = datetime.datetime.fromtimestamp(epoch_ms / 1000, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{epoch_ms} ms"
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")
