"""Replay protection: which signatures have been used. No I/O; memory is bounded.

Invariants:

1. A signature is admitted once. A caller's channel counts its calls. The table keeps the highest
   count of each channel, and one bit for each count in a window below it (the window of IPsec, RFC
   4303 section 3.4.3). A count below the window is refused, used or not.
2. A channel is removed only when all its signatures are stale. Until then each of its signatures
   is remembered or below the window. If the table is full, new channels are refused and old ones
   stay. The cluster key is always admitted: nodes need it to return, and operators need it to
   disable the keys that fill the table.
"""

from collections import Counter
from dataclasses import dataclass

from rockoon_core.signature import CLUSTER_KEY_ID

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
    """See the module.

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
        # A due that only a clock set back can explain would put it off for as long.
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
