"""Back-off: growing, randomized pauses between tries."""

import random

# The longest pause, where nothing else is said.
PAUSE_SECONDS_MAX = 2.0


class Backoff:
    """Pauses that double up to a bound, each a random share of it, so that clients that failed
    together do not come back together.

    Args:
        first_seconds: upper bound of the first pause.
        seconds_max: upper bound of all later ones.
        source: where randomness comes from; a test's own makes the pauses repeatable.
    """

    __slots__ = ("_bound", "_first", "_max", "_source")

    def __init__(
        self,
        first_seconds: float = 0.05,
        seconds_max: float = PAUSE_SECONDS_MAX,
        source: random.Random | None = None,
    ) -> None:
        self._first = first_seconds
        self._max = seconds_max
        self._bound = first_seconds
        self._source = source

    def next_seconds(self) -> float:
        """Return the next pause: between half its bound and the bound."""
        # Not a generator for each: seeding one costs more than most calls, which do not fail.
        source = random if self._source is None else self._source
        pause = self._bound * (0.5 + source.random() / 2)
        self._bound = min(self._bound * 2, self._max)
        return pause

    def reset(self) -> None:
        """Start over, after a success."""
        self._bound = self._first
