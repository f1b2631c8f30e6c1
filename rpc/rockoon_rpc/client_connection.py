"""One HTTP/2 connection of a client's channel."""

import asyncio
from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, ClassVar

from rockoon_rpc import session as events
from rockoon_rpc.client_call import ClientCall
from rockoon_rpc.connection import SessionConnection
from rockoon_rpc.session import ClientSession, ErrorCode, Metadata
from rockoon_rpc.turns import Turns

if TYPE_CHECKING:
    from rockoon_rpc.channel import Channel


# Deadlines of ended calls are removed if there are more than this number and the open calls.
ENDED_MAX = 256


class Deadlines:
    """Ends the calls of one connection at their deadlines, with one timer.

    Most calls end long before their deadline. One timer per call would cost more CPU than the call.

    Args:
        calls: open calls by stream number; at its deadline, `overdue` of the call is called.
        loop: event loop of the connection.
    """

    __slots__ = ("_calls", "_heap", "_loop", "_purge_at", "_timer")

    def __init__(self, calls: Mapping[int, Any], loop: asyncio.AbstractEventLoop) -> None:
        self._calls = calls
        self._loop = loop
        # Stream numbers, not calls: an answer must not be kept until its deadline.
        self._heap: list[tuple[float, int]] = []
        self._purge_at = ENDED_MAX
        self._timer: asyncio.TimerHandle | None = None

    def add(self, deadline: float, stream: int) -> None:
        """Set the deadline of a call, by the event loop's clock."""
        heap = self._heap
        heappush(heap, (deadline, stream))
        if self._timer is None or heap[0][0] < self._timer.when():
            self._set_timer()
        if len(heap) > self._purge_at:
            heap[:] = [each for each in heap if each[1] in self._calls]
            heapify(heap)
            self._purge_at = 2 * len(heap) + ENDED_MAX

    def stop(self) -> None:
        """Stop the timer; no further call is ended."""
        self._heap.clear()
        self._calls = {}
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._heap[0][0], self._end_overdue)

    def _end_overdue(self) -> None:
        self._timer = None
        heap, now = self._heap, self._loop.time()
        while heap and (heap[0][0] <= now or heap[0][1] not in self._calls):
            _, stream = heappop(heap)
            call = self._calls.get(stream)
            if call is not None:
                call.overdue()
        if heap and self._timer is None:
            self._set_timer()


class ClientConnection(SessionConnection):
    """One HTTP/2 connection that carries calls of a channel.

    Args:
        channel: the owning channel.

    Attributes:
        reason: why the connection ended, if the server or the operating system reported it.
        begun: future, done once the server's SETTINGS have arrived or the connection has ended.
        ended: future, done once the connection has ended.
    """

    session: ClientSession
    event_methods: ClassVar[dict[int, str]] = {
        **SessionConnection.event_methods,
        events.ANSWER: "_answer",
        events.FINISHED: "_finished",
    }

    reads_once = False

    __slots__ = ("_channel", "_deadlines", "begun", "ended", "reason")

    def __init__(self, channel: "Channel") -> None:
        session = channel.sessions.ClientSession(channel.limits)
        super().__init__(session, channel.limits, channel.liveness, Turns.of_loop().own)
        self.address = channel.address
        self.reason = ""
        self.begun: asyncio.Future[None] = self.loop.create_future()
        self.ended: asyncio.Future[None] = self.loop.create_future()
        self._channel = channel
        self._deadlines = Deadlines(self.streams, self.loop)

    @property
    def is_open(self) -> bool:
        """True if one more call can be sent on the connection."""
        if self.is_lost or self.is_closing or self.is_leaving:
            return False
        return self.session.open_streams < self.session.streams_max

    def send(self, call: ClientCall) -> bool:
        """Send a call; return False, without any effect, if the connection has no room for it."""
        if self.is_lost or self.is_closing or self.is_leaving:
            return False
        method, deadline = call.method, call.deadline
        stream = self.session.request(
            method.head,
            call.message,
            None if deadline is None else deadline - self.loop.time(),
            call.metadata,
            not method.receives_stream,
        )
        if not stream:
            return False
        self.streams[stream] = call
        if deadline is not None:
            self._deadlines.add(deadline, stream)
        call.connection = self
        call.id = stream
        if method.sends_stream:
            call.opened()
        if self._has_flush and not self._is_in_turn:
            # `wrote`, without its call.
            self._writes += 1
        else:
            self.wrote()
        return True

    def reset_call(self, stream: int) -> None:
        """Send RST_STREAM for a call that the client has ended."""
        if self.streams.pop(stream, None) is not None:
            self.session.reset(stream, ErrorCode.CANCEL)
            self.wrote()
            self.stream_over()

    def stream_over(self) -> None:
        # A former connection of its channel closes after its last call.
        if not self.streams and self._channel.connection is not self:
            self.close()

    def _fail_streams(self, code: int, reason: str) -> None:
        self._deadlines.stop()
        self._channel.lost(self)
        super()._fail_streams(code, reason)

    def eof_received(self) -> bool:
        # `connection_lost` follows in a later iteration of the loop; a call in between would fail.
        self.is_leaving = True
        self._channel.lost(self)
        return False

    def connection_lost(self, failure: BaseException | None) -> None:
        self.is_lost = True
        self.reason = str(failure or "")
        self._begin()
        super().connection_lost(failure)
        self.ended.set_result(None)

    def _begin(self) -> None:
        if not self.begun.done():
            self.begun.set_result(None)

    # Events.

    def _ready(self) -> None:
        self._begin()

    def _answer(
        self, stream: int, status: int, details: str, trailing: Metadata, message: bytes | None
    ) -> None:
        call: Any = self.streams.pop(stream, None)
        if call is not None:
            call.answered(status, details, trailing, message)
            # `stream_over`, without its call.
            if not self.streams and self._channel.connection is not self:
                self.close()

    def _finished(self, stream: int, status: int, details: str, trailing: Metadata) -> None:
        call: Any = self.streams.pop(stream, None)
        if call is not None:
            call.finished(status, details, trailing)
            self.stream_over()

    def _goaway(self, _last_stream: int, code: int, text: str) -> None:
        self.is_leaving = True
        if code == ErrorCode.ENHANCE_YOUR_CALM:
            self._channel.calmed(text)
        self._channel.lost(self)
        self.stream_over()
