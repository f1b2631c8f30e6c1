"""Receipts: a peer that acknowledges a PING has received the answers that were sent before it.

A peer handles frames in their order. A TCP balancer forwards PINGs; a balancer of HTTP/2 calls
acknowledges them itself.
"""

from collections.abc import Callable

# Of one connection. A peer that does not acknowledge PINGs leaves no more answers unconfirmed.
WAITING_MAX = 4096


class Receipts:
    """The answers of one connection that are not confirmed yet.

    One PING is on its way at a time; it confirms all answers that were queued before it.

    Args:
        ping: queues a PING behind the queued frames.
    """

    __slots__ = ("_asked", "_is_on_its_way", "_ping", "_waiting")

    def __init__(self, ping: Callable[[], None]) -> None:
        self._ping = ping
        self._is_on_its_way = False
        # By number of the answered stream: queued before the PING on its way, and behind it.
        self._asked: dict[int, Callable[[bool], None]] = {}
        self._waiting: dict[int, Callable[[bool], None]] = {}

    def probe(self) -> None:
        """Send a PING if none is on its way."""
        if not self._is_on_its_way:
            self._is_on_its_way = True
            self._ping()

    def ask(self, stream_id: int, then: Callable[[bool], None]) -> None:
        """Call `then` once: with True when the peer has received the answer of a stream, with
        False if the peer resets the stream or the connection ends before.

        Args:
            stream_id: of the stream; all of its answer is queued.
        """
        if len(self._waiting) >= WAITING_MAX:
            then(False)
        elif self._is_on_its_way:
            self._waiting[stream_id] = then
        else:
            self._asked[stream_id] = then
            self.probe()

    def acknowledged(self) -> None:
        """The peer has acknowledged the PING."""
        confirmed, self._asked, self._waiting = self._asked, self._waiting, {}
        self._is_on_its_way = False
        if self._asked:
            self.probe()
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
