"""Confirms that a peer has received answers: it acknowledges a PING frame that follows them.

A peer handles frames in their order, so the acknowledgement proves that it has received everything
before the PING. A TCP balancer forwards PINGs. A balancer of HTTP/2 calls acknowledges them itself.
"""

from collections.abc import Callable

from rockoon_core.http2 import frames

_PAYLOAD = b"received"
_PING = frames.frame(frames.PING, 0, 0, _PAYLOAD)
# Of one connection. A peer that does not acknowledge PINGs leaves no more answers unconfirmed.
WAITING_MAX = 4096


class ReceiptPings:
    """The answers of one connection that are not confirmed yet.

    One PING is on its way at a time; it confirms all answers that were written before it.

    Args:
        write: appends bytes to the connection's output.
    """

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        # By number of the answered stream.
        self._asked: dict[int, Callable[[bool], None]] = {}
        self._waiting: dict[int, Callable[[bool], None]] = {}

    def ask(self, stream_id: int, then: Callable[[bool], None]) -> None:
        """Call `then` once: with True when the peer has received the answer of a stream, with
        False if the peer resets the stream or the connection ends before.

        Args:
            stream_id: of the stream; all of its answer is written.
        """
        if len(self._waiting) >= WAITING_MAX:
            then(False)
        elif self._asked:
            self._waiting[stream_id] = then
        else:
            self._asked[stream_id] = then
            self._write(_PING)

    def acknowledged(self, payload: bytes) -> None:
        """The peer has acknowledged a PING."""
        if payload != _PAYLOAD or not self._asked:
            return
        confirmed, self._asked, self._waiting = self._asked, self._waiting, {}
        if self._asked:
            self._write(_PING)
        for then in confirmed.values():
            then(True)

    def reset(self, stream_id: int) -> None:
        """The peer has reset a stream: it discards an answer that it has not read."""
        then = self._asked.get(stream_id) or self._waiting.pop(stream_id, None)
        if stream_id in self._asked:
            # The PING is on its way.
            self._asked[stream_id] = _nothing
        if then is not None:
            then(False)

    def lost(self) -> None:
        """The connection has ended."""
        unconfirmed = [*self._asked.values(), *self._waiting.values()]
        self._asked, self._waiting = {}, {}
        for then in unconfirmed:
            then(False)


def _nothing(_is_received: bool) -> None:
    """Replaces the callback of a stream that was reset."""
