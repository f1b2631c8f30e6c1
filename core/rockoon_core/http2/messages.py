"""One stream's gRPC messages: assembled from DATA frames, and cut into them.

A message is five bytes (compressed or not, its length) and so many more, wherever frames end.
What is not read keeps its sender waiting: a stream's window is given back as messages are taken.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from rockoon_core.http2 import frames
from rockoon_core.unfilled import unfilled

if TYPE_CHECKING:
    from rockoon_core.http2.sending import Http2Sending

PREFIX = struct.Struct(">BI")
PREFIX_BYTES = 5
# What stands before a message that is a DATA frame by itself.
HEAD_AND_PREFIX = struct.Struct(frames.HEAD.format + PREFIX.format.removeprefix(">"))
# Of messages that nobody has taken yet; a longer message is taken in all the same.
UNREAD_BYTES_MAX = 4 << 20
# Of a stream's window. A peer that waits has used all of it, which is more.
GIVEN_BACK_BYTES_MIN = 1 << 20
# Longer pieces are written as they are, without being joined with what stands before them.
JOINED_BYTES_MAX = 16 << 10
# What is taken for a message before its bytes come: a producer's batch of a megabyte, with what
# stands around it, is not moved while it grows.
FIRST_BYTES_MAX = 5 << 18
# Or, when too much of that is taken already: five bytes on each of some thousand streams cost their
# sender nothing.
FIRST_BYTES_MIN = 2 << 10
UNFILLED_BYTES_MAX = 32 << 20
# Of a message whose rest is longer, bytes are received where they will lie.
DIRECT_BYTES_MIN = 8 << 10


class MessageRefused(Exception):
    """A message that is compressed, or longer than it may be; the text says which."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def framed(message: bytes) -> bytes:
    """A message as it is on the wire."""
    return PREFIX.pack(0, len(message)) + message


class UnfilledMemory:
    """Memory that is taken for messages whose bytes have not come, bounded for all who share it.

    Attributes:
        left: bytes that may still be taken.
    """

    __slots__ = ("left",)

    def __init__(self, bytes_max: int = UNFILLED_BYTES_MAX) -> None:
        self.left = bytes_max

    def first_bytes(self, wanted: int, come: int) -> tuple[int, int]:
        """How long a message's memory is at first, and how much of `left` that takes.

        Args:
            wanted: what spares the message being moved.
            come: its bytes that are there.
        """
        least = max(come, FIRST_BYTES_MIN)
        if wanted <= least:
            return wanted, 0
        if wanted > self.left:
            return least, 0
        self.left -= wanted
        return wanted, wanted


class GrowingMessage:
    """A message of which a part has come. A BytesIO gives its bytes away without copying them,
    once nobody has a view of it; where it cannot, it copies. They are not zeroed before: what has
    not come is nobody's to read.

    Args:
        first_bytes: of its memory at first.
        length: of all of it.
    """

    __slots__ = ("_bytes", "_filled", "_view", "length")

    def __init__(self, first_bytes: int, length: int) -> None:
        self.length = length
        self._filled = 0
        self._bytes, self._view = unfilled(first_bytes)

    def target(self, bytes_max: int) -> memoryview:
        """Where the next bytes may be put, at most so many; `note_filled` says that they were."""
        return self._view[self._filled : self._filled + bytes_max]

    def note_filled(self, count: int) -> bool:
        """Returns whether its memory was full with them; there is more then, if more is to come."""
        self._filled += count
        if self._filled < len(self._view):
            return False
        if self.is_whole:
            self._view.release()
        else:
            # A new one: views of the one before keep it from growing.
            grown, view = unfilled(min(2 * self._filled, self.length))
            view[: self._filled] = self._view
            self._bytes, self._view = grown, view
        return True

    @property
    def is_whole(self) -> bool:
        return self._filled == self.length

    def to_bytes(self) -> bytes:
        """The message, which is whole."""
        return self._bytes.getvalue()


class MessageStream:
    """A stream of one connection; the base of a server's call and of a client's.

    Args:
        connection: carries it.
        stream_id: its number there.
        message_bytes_max: longer messages are refused.
    """

    __slots__ = (
        "_gathered", "_is_held", "_message", "_message_bytes_max", "_unfilled", "_unread",
        "_unread_bytes", "_waiting", "connection", "has_ended", "id", "is_closed", "owed_bytes",
        "pending", "room", "send_window", "sent_last", "taker",
    )  # fmt: skip

    first_bytes_max: ClassVar[int] = FIRST_BYTES_MAX

    def __init__(self, connection: "Http2Sending", stream_id: int, message_bytes_max: int) -> None:
        self.connection = connection
        self.id = stream_id
        self.send_window = connection.peer_window
        # Received, and not given back to the peer's window, which is fixed.
        self.owed_bytes = 0
        # The peer has sent its last frame; we have queued ours; the stream is over.
        self.has_ended = self.sent_last = self.is_closed = False
        # What the windows have no room for: pieces of DATA, and whether the stream ends with one.
        # None for a piece stands for a header block that follows.
        self.pending: deque[tuple[memoryview | None, bytes, bool]] = deque()
        # Done when `pending` has been sent.
        self.room: asyncio.Future[None] | None = None
        self._message_bytes_max = message_bytes_max
        self._gathered = b""
        self._message: GrowingMessage | None = None
        # Of the connection's `unfilled`.
        self._unfilled = 0
        self._unread: deque[bytes | GrowingMessage] = deque()
        self._unread_bytes = 0
        self._waiting: asyncio.Future[None] | None = None
        self._is_held = False
        # Is offered each message that comes while the reader waits for one, where it comes: a turn
        # of the loop and a wakeup less. What it returns True for is dealt with; the reader gets the
        # others. It must not raise.
        self.taker: Callable[[bytes], bool] | None = None

    # Receiving.

    def take(self, chunk: memoryview) -> None:
        """The next bytes of DATA; they are the caller's again afterwards.

        Raises:
            MessageRefused: a message cannot be taken.
        """
        while len(chunk) and not self.is_closed:
            if self._message is None:
                wanted = PREFIX_BYTES - len(self._gathered)
                if len(chunk) < wanted:
                    self._gathered += bytes(chunk)
                    return
                compressed, length = PREFIX.unpack(self._gathered + chunk[:wanted])
                self._gathered = b""
                chunk = chunk[wanted:]
                if compressed:
                    raise MessageRefused("UNIMPLEMENTED", "compressed messages are not taken")
                if length > self._message_bytes_max:
                    raise MessageRefused(
                        "RESOURCE_EXHAUSTED",
                        f"a message of {length} bytes is longer than {self._message_bytes_max}",
                    )
                if len(chunk) >= length:
                    whole, chunk = bytes(chunk[:length]), chunk[length:]
                    if len(chunk):
                        self.connection.comes_alone = False
                    self.complete(whole)
                    continue
                # Not all at once: five bytes are no reason to take 64 MiB.
                first_bytes, self._unfilled = self.connection.unfilled.first_bytes(
                    min(length, self.first_bytes_max), len(chunk)
                )
                self._message = GrowingMessage(first_bytes, length)
            with self._message.target(len(chunk)) as target:
                count = len(target)
                target[:] = chunk[:count]
            chunk = chunk[count:]
            if self._note_filled(count) and (message := self._whole()) is not None:
                if len(chunk):
                    self.connection.comes_alone = False
                self.complete(message.to_bytes())

    def direct_target(self, bytes_max: int) -> memoryview | None:
        """Where the next bytes may be received, at most so many; None when that is not worth it."""
        if self._message is None or self.is_closed:
            return None
        target = self._message.target(bytes_max)
        return target if len(target) >= DIRECT_BYTES_MIN else None

    def filled(self, count: int) -> None:
        """So many bytes more were received into the message, unless the stream was closed
        meanwhile."""
        if self._note_filled(count) and (message := self._whole()) is not None:
            # Not its bytes: the transport has a view of them until the callback is over.
            self._add_unread(message, message.length)

    def _note_filled(self, count: int) -> bool:
        """Whether the message's memory was full."""
        if self._message is None or not self._message.note_filled(count):
            return False
        self._give_unfilled_back()
        return True

    def _whole(self) -> GrowingMessage | None:
        """Take the message out, if all of it has come."""
        message = self._message
        if message is None or not message.is_whole:
            return None
        self._message = None
        return message

    def _give_unfilled_back(self) -> None:
        self.connection.unfilled.left += self._unfilled
        self._unfilled = 0

    @property
    def is_within_message(self) -> bool:
        return self._message is not None or bool(self._gathered)

    @property
    def has_unread(self) -> bool:
        """Whether a message waits for its reader."""
        return bool(self._unread)

    @property
    def keeps_up(self) -> bool:
        """Whether the peer may go on sending."""
        return self._unread_bytes < UNREAD_BYTES_MAX

    def takes_whole(self, length: int) -> bool:
        """Whether DATA of this length may be one whole message, with nothing to give back then."""
        return (
            length - PREFIX_BYTES <= self._message_bytes_max
            and self.owed_bytes + length < GIVEN_BACK_BYTES_MIN
            and self._message is None
            and not (self._gathered or self.has_ended)
        )

    def complete(self, message: bytes) -> None:
        """A message has come."""
        waiting = self._waiting
        if (
            self.taker is not None
            # The reader has had everything that came, and waits for more.
            and not (waiting is None or waiting.done() or self._unread or self._is_held)
            and self.taker(message)
        ):
            if self.owed_bytes >= GIVEN_BACK_BYTES_MIN:
                self._give_back()
        else:
            self._add_unread(message, len(message))

    def _add_unread(self, message: bytes | GrowingMessage, length: int) -> None:
        self._unread.append(message)
        self._unread_bytes += length + PREFIX_BYTES
        if not self._is_held:
            self._wake()

    def hold(self) -> None:
        """The taker needs time for a message: the reader gets none behind it before `release`."""
        self._is_held = True

    def release(self, left: bytes | None = None) -> None:
        """The message that was held for is dealt with; or `left`, and the reader gets it."""
        self._is_held = False
        if left is not None:
            self._unread.appendleft(left)
            self._unread_bytes += len(left) + PREFIX_BYTES
        if self._unread or self.has_ended:
            self._wake()

    def peer_ended(self) -> None:
        """The peer sends nothing more."""
        self.has_ended = True
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def taken(self) -> bytes | None:
        """The next message that is there; None when none is."""
        if self._is_held or not self._unread:
            return None
        unread = self._unread.popleft()
        message = unread.to_bytes() if isinstance(unread, GrowingMessage) else unread
        self._unread_bytes -= len(message) + PREFIX_BYTES
        self._give_back()
        return message

    def _give_back(self) -> None:
        # In large pieces: a frame for each message is a system call here, and a wakeup there.
        is_due = self.owed_bytes >= GIVEN_BACK_BYTES_MIN and self.keeps_up
        if is_due and not (self.has_ended or self.is_closed):
            self.connection.give_back(self)

    async def read(self) -> bytes | None:
        """The next message, for one reader; None at the end of the stream."""
        while self._is_held or not self._unread:
            if self.is_closed or (self.has_ended and not self._is_held):
                return None
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        return self.taken()

    # Sending.

    @property
    def has_room(self) -> bool:
        """Whether what is queued next goes out at once."""
        choked = self.connection.is_choked
        return not (self.pending or choked or self.is_closed or self.sent_last)

    def queue_message(self, message: bytes | list[bytes], *, last: bool = False) -> None:
        """Send a message as soon as the peer's windows let it.

        Args:
            message: its bytes, or pieces of them, of which long ones are not copied.
            last: the stream ends with it.
        """
        self.sent_last = last
        if isinstance(message, list):
            if sum(map(len, message)) > JOINED_BYTES_MAX and not last:
                self.connection.send_pieces(self, message)
                return
            message = b"".join(message)
        if last or not self.connection.send_whole(self, message):
            self.connection.send_data(self, PREFIX.pack(0, len(message)), message, last=last)

    async def send_message(self, message: bytes | list[bytes]) -> None:
        """Likewise, and return when another one may be queued."""
        self.queue_message(message)
        await self.wait_room()

    async def wait_room(self) -> None:
        """Wait until all that was queued is with the transport, and that takes more."""
        while (self.pending or self.connection.is_choked) and not self.is_closed:
            if self.room is None or self.room.done():
                self.room = asyncio.get_running_loop().create_future()
                self.connection.wants_room(self)
            await asyncio.shield(self.room)

    def give_room(self) -> None:
        if self.room is not None and not self.room.done():
            self.room.set_result(None)

    def end_sending(self) -> None:
        """Nothing more follows what was queued."""
        if not (self.sent_last or self.is_closed):
            self.sent_last = True
            self.connection.send_end(self)

    def queue_headers(self, block: bytes, *, last: bool) -> None:
        """Send headers, or trailers, behind all that was queued."""
        self.sent_last = last
        if self.pending:
            self.pending.append((None, block, last))
        else:
            self.connection.send_headers(self, block, last=last)

    def closed(self) -> None:
        """Nothing is sent or received any more."""
        self.is_closed = True
        self.pending.clear()
        # What it is bound to may have the stream.
        self.taker = None
        # Whoever has the stream still does not keep what nobody fills.
        self._message = None
        self._give_unfilled_back()
        self._wake()
        self.give_room()

    def failed(self, code: frames.ErrorCode, reason: str) -> None:  # noqa: ARG002 - for overriders
        """The peer, or the end of the connection, has ended the stream; overridden."""
        self.closed()
