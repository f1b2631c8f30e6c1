"""Replay protection: signatures that have been used. Pure; memory is bounded.

Invariants:

1. A signature is admitted once. A caller's channel counts its calls: of each channel the highest
   count is kept, and one bit for each of those shortly below it (the window of IPsec, RFC 4303
   section 3.4.3). What is below the window is refused, used or not.
2. A channel is forgotten when all that it can have signed is stale: until then every signature of
   its is either remembered or below the window. Without room, new channels are refused; old ones
   are not forgotten for them. The services' own key finds room whatever others do: with it nodes
   come back, and an operator disables the keys that take all of it.
"""

from collections import Counter
from dataclasses import dataclass

from rockoon_core.signature import CLUSTER_KEY_ID

COUNTS_REMEMBERED = 4096
_MASK = (1 << COUNTS_REMEMBERED) - 1

CHANNELS_MAX = 100_000
# Of one key: the others must find room.
KEY_CHANNELS_MAX = 20_000
SWEEP_MS = 1_000


class NoRoom(Exception):
    """As many channels as are remembered have called lately."""


@dataclass(slots=True)
class _Channel:
    """What has been used of one channel's signatures."""

    highest: int
    # Bit i: `highest` - i has been used.
    used: int
    # The latest time that one of them bore.
    latest_ms: int


class UsedSignatures:
    """See the module.

    Args:
        window_ms: how far a signature's time may be from the clock.
        channels_max, key_channels_max: remembered at once, and of one key.
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
        self._channels: dict[tuple[str, str], _Channel] = {}
        self._of_key: Counter[str] = Counter()
        self._sweep_ms = max(SWEEP_MS, window_ms // 8)
        self._sweep_at_ms = 0

    def __len__(self) -> int:
        return len(self._channels)

    def admit(self, key_id: str, instance: str, counter: int, signed_ms: int, now_ms: int) -> bool:
        """Use a signature that holds and whose time is within the window.

        Returns:
            False when it has been used, or is too far behind others of its channel to know.

        Raises:
            NoRoom: its channel is new and there is no room for it.
        """
        # A due that only a clock set back can explain would put it off for as long.
        if now_ms >= self._sweep_at_ms or now_ms < self._sweep_at_ms - self._sweep_ms:
            self._forget(now_ms)
        key = (key_id, instance)
        known = self._channels.get(key)
        if known is None:
            full = len(self._channels) >= self._channels_max and key_id != CLUSTER_KEY_ID
            if full or self._of_key[key_id] >= self._key_channels_max:
                raise NoRoom
            self._channels[key] = _Channel(counter, 1, signed_ms)
            self._of_key[key_id] += 1
            return True
        ahead = counter - known.highest
        if ahead > 0:
            # Shifting by the count itself would let a caller ask for all memory.
            known.used = (known.used << min(ahead, COUNTS_REMEMBERED) | 1) & _MASK
            known.highest = counter
        else:
            bit = 1 << -ahead if -ahead < COUNTS_REMEMBERED else 0
            if not bit or known.used & bit:
                return False
            known.used |= bit
        known.latest_ms = max(known.latest_ms, signed_ms)
        return True

    def _forget(self, now_ms: int) -> None:
        """Once in a while: the cost is that of all channels, shared by many calls."""
        self._sweep_at_ms = now_ms + self._sweep_ms
        over = now_ms - self._window_ms
        gone = [key for key, channel in self._channels.items() if channel.latest_ms < over]
        for key in gone:
            del self._channels[key]
            self._of_key[key[0]] -= 1
        self._of_key = +self._of_key
