"""One HTTP/2 connection of a client's channel."""

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

from rockoon_rpc import session as events
from rockoon_rpc.client_call import ClientCall
from rockoon_rpc.connection import SessionConnection
from rockoon_rpc.deadlines import Deadlines
from rockoon_rpc.session import ClientSession, ErrorCode, Metadata

if TYPE_CHECKING:
    from rockoon_rpc.channel import Channel


class ClientConnection(SessionConnection):
    """One HTTP/2 connection that carries calls of a channel.

    Args:
        channel: the owning channel.

    Attributes:
        is_leaving: the server accepts no further calls; the connection closes after its last call.
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

    __slots__ = ("_channel", "_deadlines", "begun", "ended", "is_leaving", "reason")

    def __init__(self, channel: "Channel") -> None:
        session = channel.sessions.ClientSession(channel.limits)
        super().__init__(session, channel.limits, channel.liveness)
        self.address = channel.address
        self.is_leaving = False
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
        self.wrote()
        return True

    def reset_call(self, stream: int) -> None:
        """Send RST_STREAM for a call that the client has ended."""
        if self.streams.pop(stream, None) is not None:
            self.session.reset(stream, ErrorCode.CANCEL)
            self.wrote()
            self.stream_over()

    def stream_over(self) -> None:
        if not self.streams and self._channel.is_former(self):
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
            if not self.streams:
                self.stream_over()

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
