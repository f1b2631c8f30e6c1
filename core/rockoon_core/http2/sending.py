"""Sending of one side of a connection, as far as the peer's windows have room for it."""

from typing import TYPE_CHECKING, Any

from rockoon_core.http2 import frames
from rockoon_core.http2.messages import (
    HEAD_AND_PREFIX,
    JOINED_BYTES_MAX,
    PREFIX,
    PREFIX_BYTES,
    UnfilledMemory,
)

# What is kept for being written together.
HELD_BYTES_MAX = 64 << 10
# Cost of one turn of a connection, about a millisecond: a received byte costs 1, a frame more.
TURN_COST = 64 << 10
# Cost of each stream that an opened window or a setting concerns.
STREAM_COST = 8
# Wide, since batches are of megabytes.
OWN_STREAM_WINDOW = 4 << 20

if TYPE_CHECKING:
    from rockoon_core.http2.messages import MessageStream


class Http2Sending:
    """The sending half of `Http2Connection`.

    Attributes:
        peer_frame_bytes: longer frames are not sent.
        peer_window: how much may be sent on a stream that opens.
        unfilled: bounds what is taken for messages that come.
        is_choked: the transport holds as much as it should.
        is_lost: the connection has ended.
        is_broken: the peer has broken the protocol.
        is_closing: nothing is written any more.
        comes_alone: nothing else came with the message that is told of, as far as can be seen.
        turn_left: cost that the turn may still use.
        idle_frames: frames without effect that were received, and not counted yet.
        resets: streams that the peer has reset, or made this side reset, and not counted yet.
        granted_bytes: DATA that the peer has allowed this side to send on the connection, in all.
    """

    def __init__(self) -> None:
        self.transport: Any = None
        self._send_window = frames.WINDOW_DEFAULT
        self.peer_frame_bytes = frames.FRAME_BYTES_MIN
        self.peer_window = frames.WINDOW_DEFAULT
        self.unfilled = UnfilledMemory()
        self.is_choked = False
        self.is_lost = False
        self.is_broken = False
        self.is_closing = False
        self.comes_alone = False
        self.turn_left = 0
        self.idle_frames = self.resets = 0
        self.granted_bytes = frames.WINDOW_DEFAULT
        # Sent DATA for which the budget of idle frames was refilled.
        self._counted_bytes = 0
        # Streams with something that the windows have had no room for, in the order of their turns.
        self._blocked: dict[int, MessageStream] = {}
        # What is written together.
        self._held: list[bytes] | None = None
        self._held_bytes = 0
        # Those whose senders wait.
        self._wanting: list[MessageStream] = []

    def drop_if_over(self, stream: "MessageStream") -> None:
        """A stream's last frame is sent."""
        raise NotImplementedError

    def hold_writes(self) -> None:
        """Keep what is written until `release_writes`, so that it goes out in one write.

        For who writes several times without waiting in between: what another one writes meanwhile
        would be kept as well.
        """
        if self._held is None:
            self._held = []

    def release_writes(self) -> None:
        """Write what was kept; does nothing when nothing is."""
        held, self._held, self._held_bytes = self._held, None, 0
        if held:
            self._write(b"".join(held))

    def _write(self, data: bytes) -> None:
        if self.is_lost or self.is_closing:
            return
        if self._held is None:
            self.transport.write(data)
            return
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > HELD_BYTES_MAX:
            self.release_writes()

    def _write_all(self, pieces: list[bytes | memoryview]) -> None:
        if pieces and not (self.is_lost or self.is_closing):
            self.release_writes()
            self.transport.writelines(pieces)

    def send_headers(
        self, stream: "MessageStream", block: bytes, *, last: bool, before: bytes = b""
    ) -> None:
        """Headers of a stream, in as many frames as the peer wants."""
        if stream.is_closed:
            return
        out, kind, flags = [before], frames.HEADERS, frames.END_STREAM if last else 0
        while len(block) > self.peer_frame_bytes:
            out.append(frames.frame(kind, flags, stream.id, block[: self.peer_frame_bytes]))
            block = block[self.peer_frame_bytes :]
            kind, flags = frames.CONTINUATION, 0
        out.append(frames.frame(kind, flags | frames.END_HEADERS, stream.id, block))
        self._write(b"".join(out))
        if last:
            self.drop_if_over(stream)

    def send_whole(self, stream: "MessageStream", message: bytes) -> bool:
        """Send a message as one frame, as nearly all go, in few steps; False where it is to be sent
        by `send_data`."""
        length = PREFIX_BYTES + len(message)
        if (
            # Nor longer than any peer's frames may be.
            length > JOINED_BYTES_MAX
            or length > stream.send_window
            or length > self._send_window
            or stream.pending
            or stream.is_closed
        ):
            return False
        stream.send_window -= length
        self._send_window -= length
        head = HEAD_AND_PREFIX.pack(length << 8 | frames.DATA, 0, stream.id, 0, len(message))
        self._write(head + message)
        return True

    def send_data(
        self,
        stream: "MessageStream",
        prefix: bytes,
        message: bytes,
        *,
        last: bool,
        before: bytes = b"",
    ) -> None:
        """A message behind its five bytes; what there is no room for is sent later.

        Args:
            before: frames to be written with it.
        """
        if stream.is_closed:
            return
        if len(message) <= JOINED_BYTES_MAX:
            data = prefix + message
            length = len(data)
            if (
                not stream.pending
                and length <= stream.send_window
                and length <= self._send_window
                and length <= self.peer_frame_bytes
            ):
                stream.send_window -= length
                self._send_window -= length
                flags = frames.END_STREAM if last else 0
                self._write(before + frames.head(length, frames.DATA, flags, stream.id) + data)
                if last:
                    self.drop_if_over(stream)
                return
            pieces = [data]
        else:
            pieces = [prefix, message] if prefix else [message]
        if before:
            self._write(before)
        for piece in pieces[:-1]:
            stream.pending.append((memoryview(piece), b"", False))
        stream.pending.append((memoryview(pieces[-1]), b"", last))
        self._send_pending(stream)

    def send_pieces(self, stream: "MessageStream", pieces: list[bytes]) -> None:
        """A message in pieces, which does not end the stream; what there is no room for is sent
        later."""
        if stream.is_closed:
            return
        short = PREFIX.pack(0, sum(map(len, pieces)))
        for piece in pieces:
            if len(piece) <= JOINED_BYTES_MAX:
                short += piece
                continue
            if short:
                stream.pending.append((memoryview(short), b"", False))
            stream.pending.append((memoryview(piece), b"", False))
            short = b""
        if short:
            stream.pending.append((memoryview(short), b"", False))
        self._send_pending(stream)

    def send_end(self, stream: "MessageStream") -> None:
        """An empty frame that ends a stream, behind what waits."""
        stream.pending.append((memoryview(b""), b"", True))
        self._send_pending(stream)

    def reset(self, stream: "MessageStream", code: frames.ErrorCode) -> None:
        """Give a stream up."""
        raise NotImplementedError

    def _send_pending(self, stream: "MessageStream") -> None:
        """As much of what waits on a stream as windows and the transport take."""
        out: list[bytes | memoryview] = []
        while stream.pending and not stream.is_closed:
            piece, block, last = stream.pending[0]
            if piece is None:
                stream.pending.popleft()
                self._write_all(out)
                out = []
                self.send_headers(stream, block, last=last)
                continue
            room = min(stream.send_window, self._send_window, self.peer_frame_bytes)
            # A window may be less than nothing, when the peer has made it narrower.
            count = max(min(room, len(piece)), 0)
            if not count and len(piece):
                break
            stream.pending.popleft()
            is_rest = count < len(piece)
            if is_rest:
                stream.pending.appendleft((piece[count:], b"", last))
            stream.send_window -= count
            self._send_window -= count
            flags = frames.END_STREAM if last and not is_rest else 0
            out.append(frames.head(count, frames.DATA, flags, stream.id))
            if count:
                out.append(piece[:count])
            if last and not is_rest:
                self._write_all(out)
                out = []
                self.drop_if_over(stream)
        self._write_all(out)
        if stream.pending:
            self._blocked[stream.id] = stream
        else:
            self._blocked.pop(stream.id, None)

    def _pump(self) -> None:
        """Windows or the transport have room again."""
        self.turn_left -= STREAM_COST * (len(self._blocked) + len(self._wanting))
        for stream_id, stream in list(self._blocked.items()):
            if self._send_window <= 0 or self.is_choked or self.is_lost:
                break
            # The one that had its turn waits behind the others.
            del self._blocked[stream_id]
            self._send_pending(stream)
        self._give_room()

    def wants_room(self, stream: "MessageStream") -> None:
        """A stream's sender waits until it may queue more."""
        self._wanting.append(stream)

    def _give_room(self) -> None:
        wanting, self._wanting = self._wanting, []
        for stream in wanting:
            if not stream.is_closed and (stream.pending or self.is_choked):
                self._wanting.append(stream)
            else:
                stream.give_room()

    def give_back(self, stream: "MessageStream") -> None:
        """Let the peer send as much again as was received on a stream."""
        self._write(frames.window_update(stream.id, stream.owed_bytes))
        stream.owed_bytes = 0
