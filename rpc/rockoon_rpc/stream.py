"""Messages of one HTTP/2 stream: unread received messages, and flow control of sending.

If the application does not read a stream, only that stream's sender is blocked: beyond
`Limits.unread_bytes_max` unread bytes, the session sends no WINDOW_UPDATE for the stream.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rockoon_rpc.connection import SessionConnection

# It stays empty.
_NOTHING: deque[bytes] = deque(maxlen=0)


class MessageStream:
    """Base of a server's call and of a client's streaming call.

    Args:
        connection: connection of the stream.
        stream_id: number of the HTTP/2 stream.

    Attributes:
        has_ended: the peer has sent its last message.
        sent_last: this side has sent its last message.
        is_closed: both directions have ended.
        on_message: optional callback for a message that arrives while the reader waits, which
            saves a wake-up of the reader. If it returns True, it has handled the message;
            otherwise `read` returns the message. It must not raise.
    """

    __slots__ = (
        "_is_held", "_is_paused", "_is_pending", "_room", "_unread", "_unread_bytes", "_waiting",
        "connection", "has_ended", "id", "is_closed", "on_message", "sent_last",
    )  # fmt: skip

    def __init__(self, connection: "SessionConnection", stream_id: int) -> None:
        self.connection = connection
        self.id = stream_id
        self.has_ended = self.sent_last = self.is_closed = False
        self.on_message: Callable[[bytes], bool] | None = None
        # Replaced with the first message: most calls of a server have one, which is passed with
        # the call.
        self._unread = _NOTHING
        self._unread_bytes = 0
        self._waiting: asyncio.Future[None] | None = None
        # The reader is paused; the session withholds the window.
        self._is_paused = self._is_held = False
        # Something that was queued is not in the connection's output.
        self._is_pending = False
        self._room: asyncio.Future[None] | None = None

    # Receiving.

    def received(self, message: bytes) -> None:
        """Handle a received message."""
        waiting = self._waiting
        if (
            self.on_message is not None
            # The reader has read everything that arrived.
            and not (waiting is None or waiting.done() or self._unread or self._is_paused)
            and self.on_message(message)
        ):
            return
        self._add_unread(message)

    def _add_unread(self, message: bytes) -> None:
        if self._unread is _NOTHING:
            self._unread = deque()
        self._unread.append(message)
        self._unread_bytes += len(message)
        if self._unread_bytes > self.connection.limits.unread_bytes_max and not self._is_held:
            self._is_held = True
            self.connection.session.hold(self.id)
        if not self._is_paused:
            self._wake()

    def pause_reader(self) -> None:
        """Stop returning messages from `read` until `resume_reader`, because `on_message` needs
        longer for a message."""
        self._is_paused = True

    def resume_reader(self, unhandled: bytes | None = None) -> None:
        """Return messages from `read` again, beginning with `unhandled` if it is not None."""
        self._is_paused = False
        if unhandled is not None:
            if self._unread is _NOTHING:
                self._unread = deque()
            self._unread.appendleft(unhandled)
            self._unread_bytes += len(unhandled)
        if self._unread or self.has_ended:
            self._wake()

    def peer_ended(self) -> None:
        """Handle the end of the peer's messages."""
        self.has_ended = True
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def next_unread(self) -> bytes | None:
        """Return the oldest unread message without waiting; None if there is none."""
        if self._is_paused or not self._unread:
            return None
        message = self._unread.popleft()
        self._unread_bytes -= len(message)
        if self._is_held and self._unread_bytes <= self.connection.limits.unread_bytes_max // 2:
            self._is_held = False
            self.connection.session.resume(self.id)
            self.connection.wrote()
        return message

    async def read(self) -> bytes | None:
        """Wait for the next message and return it; None at the end of the stream. Only one task may
        read."""
        while self._is_paused or not self._unread:
            if self.is_closed or (self.has_ended and not self._is_paused):
                return None
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        return self.next_unread()

    # Sending.

    @property
    def has_room(self) -> bool:
        """True if the next queued message can be sent immediately."""
        return not (
            self._is_pending or self.connection.is_choked or self.is_closed or self.sent_last
        )

    def queue_message(self, message: bytes | list[bytes], *, framed: bool = False) -> None:
        """Queue a message; flow control decides when it is sent.

        Args:
            message: its bytes, or pieces of one message. Long ones are not copied.
            framed: the bytes are whole messages, each with its gRPC prefix of five bytes.
        """
        if self.is_closed:
            return
        connection = self.connection
        if not connection.session.send(self.id, message, framed):
            self._is_pending = True
        connection.wrote()

    async def send_message(self, message: bytes | list[bytes]) -> None:
        """Queue a message; return once the next one may be queued."""
        self.queue_message(message)
        if self._is_pending or self.connection.is_choked:
            await self.wait_room()

    @property
    def is_pending(self) -> bool:
        """True if queued messages wait for flow control or for the transport."""
        return self._is_pending

    async def wait_room(self) -> None:
        """Wait until the transport has accepted all queued messages and can accept more."""
        while (self._is_pending or self.connection.is_choked) and not self.is_closed:
            if self._room is None or self._room.done():
                self._room = asyncio.get_running_loop().create_future()
                self.connection.await_room(self)
            await asyncio.shield(self._room)

    def sent_all(self) -> None:
        """Handle the event ROOM: all queued messages are in the connection's output."""
        self._is_pending = False
        # If the transport is full by now, `wait_room` registers for its room.
        self.notify_room()

    def notify_room(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    # Ends.

    def reset(self, code: int) -> None:
        """Send RST_STREAM; both directions of the stream end."""
        if not self.is_closed:
            self.connection.session.reset(self.id, code)
            self.connection.forget(self)
            self.connection.wrote()

    def closed(self) -> None:
        """Handle the removal of the stream from its connection."""
        self.is_closed = True
        # It may refer to the stream.
        self.on_message = None
        self._wake()
        self.notify_room()

    def failed(self, code: int, reason: str) -> None:  # noqa: ARG002 - for overriders
        """Handle a stream that the peer has reset, or that ended with its connection; subclasses
        override it."""
        self.closed()
