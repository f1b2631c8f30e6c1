"""Liveness of a connection: sends PING to a silent peer; without a reply, aborts the connection."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LOOK_AGAIN_SECONDS = 0.1


@dataclass(frozen=True)
class Liveness:
    """Time limits after which a silent connection is aborted.

    Attributes:
        ping_seconds: silence of the peer after which a PING is sent.
        answer_seconds: silence after the PING after which the connection is aborted.
    """

    ping_seconds: float = 20.0
    answer_seconds: float = 20.0


class PeerWatch:
    """Checks the liveness of one connection's peer until it is stopped.

    Args:
        transport: the connection; aborted if the peer does not answer.
        ping: sends a PING frame.
        liveness: time limits.

    Attributes:
        signs: number of signs of life, counted by the connection: bytes have arrived, or the
            peer has read output.
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
        # They refer to the connection, which refers to this object.
        del self._transport, self._ping

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
