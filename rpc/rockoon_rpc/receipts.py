"""Receipts: if a client acknowledges a PING, it has received all replies that were sent before it.

HTTP/2 peers handle frames in order. A TCP load balancer forwards PINGs to the client; an HTTP/2
load balancer acknowledges them itself, so a receipt then only proves arrival at the balancer.
"""

from collections.abc import Callable

# Of one connection. A peer that does not acknowledge PINGs leaves no more answers unconfirmed.
WAITING_MAX = 4096


class Receipts:
    """Tracks the replies of one connection that the client has not confirmed yet.

    At most one PING is unacknowledged at a time; it confirms all replies queued before it.

    Args:
        ping: queues a PING after the queued frames.
    """

    __slots__ = ("_asked", "_is_on_its_way", "_ping", "_waiting")

    def __init__(self, ping: Callable[[], None]) -> None:
        self._ping = ping
        self._is_on_its_way = False
        # By number of the answered stream: queued before the PING on its way, and behind it.
        self._asked: dict[int, Callable[[bool], None]] = {}
        self._waiting: dict[int, Callable[[bool], None]] = {}

    def probe(self) -> None:
        """Send a PING if none is unacknowledged."""
        if not self._is_on_its_way:
            self._is_on_its_way = True
            self._ping()

    def ask(self, stream_id: int, then: Callable[[bool], None]) -> None:
        """Call `then` once: with True when the client has received the reply of a stream, with
        False if the client resets the stream before, or the connection ends before.

        Args:
            stream_id: number of the stream, whose whole reply is already queued.
        """
        if len(self._waiting) >= WAITING_MAX:
            then(False)
        elif self._is_on_its_way:
            self._waiting[stream_id] = then
        else:
            self._asked[stream_id] = then
            self.probe()

    def acknowledged(self) -> None:
        """Handle the acknowledgement of the PING: run the callbacks that it confirms."""
        confirmed, self._asked, self._waiting = self._asked, self._waiting, {}
        self._is_on_its_way = False
        if self._asked:
            self.probe()
        for then in confirmed.values():
            then(True)

    def reset(self, stream_id: int) -> None:
        """Handle a reset by the client, which discards a reply that it has not read."""
        then = self._asked.get(stream_id) or self._waiting.pop(stream_id, None)
        if stream_id in self._asked:
            # The PING is on its way.
            self._asked[stream_id] = _nothing
        if then is not None:
            then(False)

    def lost(self) -> None:
        """Handle the end of the connection: no pending reply is confirmed."""
        unconfirmed = [*self._asked.values(), *self._waiting.values()]
        self._asked, self._waiting = {}, {}
        for then in unconfirmed:
            then(False)


def _nothing(_is_received: bool) -> None:
    """Does nothing; replaces the callback of a stream that was reset."""
