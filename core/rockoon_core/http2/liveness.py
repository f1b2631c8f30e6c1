"""Liveness of a connection: a silent peer is asked, and given up when it does not answer."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rockoon_core.http2 import frames

_PING = frames.frame(frames.PING, 0, 0, b"liveness")
LOOK_AGAIN_SECONDS = 0.1


@dataclass(frozen=True)
class Liveness:
    """When a silent connection is given up.

    Attributes:
        ping_seconds: of silence, after which the peer is asked for a sign of life.
        answer_seconds: how long it may take to give one.
    """

    ping_seconds: float = 20.0
    answer_seconds: float = 20.0


class PeerWatch:
    """Watches one connection until it is stopped.

    Args:
        transport: aborted when its peer is gone.
        write: sends bytes there.
        liveness: how long anything may take.

    Attributes:
        signs: how often something came; counted by the connection.
    """

    def __init__(self, transport: Any, write: Callable[[bytes], None], liveness: Liveness) -> None:
        self._transport = transport
        self._write = write
        self._liveness = liveness
        self.signs = 1
        self._seen = 0
        self._has_looked_again = False
        self._unsent = 0
        self._timer = self._later(liveness.ping_seconds, self._tick)

    def stop(self) -> None:
        self._timer.cancel()

    def _later(self, seconds: float, what: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, what)

    def _has_heard(self) -> bool:
        """Whether something has come since this was asked last."""
        before, self._seen = self._seen, self.signs
        return self._seen != before

    def _tick(self) -> None:
        if self._has_heard():
            self._timer = self._later(self._liveness.ping_seconds, self._tick)
            return
        self._has_looked_again = False
        self._unsent = self._transport.get_write_buffer_size()
        self._write(_PING)
        self._timer = self._later(self._liveness.answer_seconds, self._tock)

    def _tock(self) -> None:
        # Of a peer that reads slowly the question has not left yet.
        if self.signs != self._seen or self._transport.get_write_buffer_size() < self._unsent:
            self._tick()
        elif self._has_looked_again:
            self._transport.abort()
        else:
            # This process may have stood still, with the answer in the socket.
            self._has_looked_again = True
            self._timer = self._later(LOOK_AGAIN_SECONDS, self._tock)
