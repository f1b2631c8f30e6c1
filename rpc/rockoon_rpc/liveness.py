"""Liveness of a connection: a silent peer is sent a PING, and aborted if it does not answer."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LOOK_AGAIN_SECONDS = 0.1


@dataclass(frozen=True)
class Liveness:
    """When a silent connection is aborted.

    Attributes:
        ping_seconds: of silence before the peer is sent a PING.
        answer_seconds: of silence behind the PING before the connection is aborted.
    """

    ping_seconds: float = 20.0
    answer_seconds: float = 20.0


class PeerWatch:
    """Watches one connection until it is stopped.

    Args:
        transport: aborted when its peer is silent.
        ping: sends a PING.
        liveness: time limits.

    Attributes:
        signs: how often bytes have arrived, or the peer has read; counted by the connection.
    """

    __slots__ = (
        "_has_looked_again", "_liveness", "_ping", "_seen", "_timer", "_transport", "_unsent",
        "signs",
    )  # fmt: skip

    def __init__(self, transport: Any, ping: Callable[[], None], liveness: Liveness) -> None:
        self._transport = transport
        self._ping = ping
        self._liveness = liveness
        self.signs = 1
        self._seen = 0
        self._has_looked_again = False
        self._unsent = 0
        self._timer = self._later(liveness.ping_seconds, self._check_silence)

    def stop(self) -> None:
        self._timer.cancel()

    def _later(self, seconds: float, check: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, check)

    def _check_silence(self) -> None:
        seen, self._seen = self._seen, self.signs
        if seen != self._seen:
            self._timer = self._later(self._liveness.ping_seconds, self._check_silence)
            return
        self._has_looked_again = False
        self._unsent = self._transport.get_write_buffer_size()
        self._ping()
        self._timer = self._later(self._liveness.answer_seconds, self._check_answer)

    def _check_answer(self) -> None:
        # If the peer reads slowly, the PING has not left yet.
        if self.signs != self._seen or self._transport.get_write_buffer_size() < self._unsent:
            self._check_silence()
        elif self._has_looked_again:
            self._transport.abort()
        else:
            # This process may have been stopped, and the answer is in the socket.
            self._has_looked_again = True
            self._timer = self._later(LOOK_AGAIN_SECONDS, self._check_answer)
