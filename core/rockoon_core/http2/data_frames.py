"""DATA frames as they come: whose they are, the windows that they use, and the messages in them."""

from typing import TYPE_CHECKING

from rockoon_core.http2 import frames
from rockoon_core.http2.control_frames import ControlFrames
from rockoon_core.http2.frames import ErrorCode, StreamBroken
from rockoon_core.http2.messages import HEAD_AND_PREFIX, PREFIX_BYTES, MessageRefused
from rockoon_core.http2.sending import OWN_STREAM_WINDOW
from rockoon_core.http2.shared_buffer import SharedBuffer

if TYPE_CHECKING:
    from rockoon_core.http2.messages import MessageStream

# Our own: what peers may send. Wide, since batches are of megabytes.
OWN_CONNECTION_WINDOW = 16 << 20
GIVEN_BACK_AT = OWN_CONNECTION_WINDOW // 4
# Of a turn's cost: a DATA frame.
MESSAGE_COST = 256
HEAD_AND_PREFIX_BYTES = frames.HEAD_BYTES + PREFIX_BYTES


class DataFrames(ControlFrames):
    """What `Http2Connection` does with them.

    Args:
        is_server: which side this is.
    """

    def __init__(self, *, is_server: bool) -> None:
        super().__init__(is_server=is_server)
        self._buffer = SharedBuffer.of_loop()
        # Received, and not given back to the peer's window.
        self._owed_bytes = 0
        # Of a DATA frame whose payload has not come whole.
        self._data_left = 0
        self._data_stream: MessageStream | None = None
        self._data_ends = False
        # What keeps DATA from being the next frame.
        self._awaits_preface = is_server
        self._headers: tuple[int, int, list[bytes]] | None = None

    def message_refused(self, stream: "MessageStream", refusal: MessageRefused) -> None:
        """A message cannot be taken."""
        raise NotImplementedError

    def _stream_broken(self, failure: StreamBroken) -> None:
        """The peer has broken the protocol on one stream."""
        raise NotImplementedError

    def _refuse(self, stream_id: int, code: ErrorCode) -> None:
        # A client resets streams for its own reasons, a server for its peer's.
        self.resets += self._is_server
        self.turn_left -= MESSAGE_COST
        self._write(frames.rst_stream(stream_id, code))

    def _take_whole(self, end: int) -> int:
        """Take the DATA frames with a whole message each that the buffer begins with: what is not
        in bulk comes so, and this is a fraction of the steps. Returns where anything else begins.
        """
        at = 0
        is_within = self._data_left or self._headers is not None or self._awaits_preface
        if is_within or self.is_lost or self.awaits_settings:
            return at
        raw, turn_left = self._buffer.bytes, self.turn_left
        while at + HEAD_AND_PREFIX_BYTES <= end and turn_left > 0:
            word, flags, stream_id, compressed, count = HEAD_AND_PREFIX.unpack_from(raw, at)
            start, length = at + HEAD_AND_PREFIX_BYTES, PREFIX_BYTES + count
            behind = start + count
            if word != (length << 8 | frames.DATA) or flags or compressed or behind > end:
                break
            stream, owed_bytes = self.streams.get(stream_id), self._owed_bytes + length
            # Where so little is owed, windows have room: they are what is left of fixed ones.
            if stream is None or owed_bytes >= GIVEN_BACK_AT or not stream.takes_whole(length):
                break
            turn_left -= MESSAGE_COST
            self._owed_bytes = owed_bytes
            stream.owed_bytes += length
            self.comes_alone = not (at or (behind < end and self.is_data(behind, end)))
            stream.complete(bytes(self._buffer.view[start:behind]))
            # A connection that this has ended has no streams any more.
            at = behind
        self.turn_left = turn_left
        return at

    def is_data(self, at: int, end: int) -> bool:
        """Whether what begins at a place of the buffer may be DATA."""
        # The fourth byte is a frame's kind.
        return at + 3 >= end or self._buffer.bytes[at + 3] == frames.DATA

    def _begin_data(self, flags: int, stream_id: int, length: int) -> None:
        """The head of a DATA frame: windows, and whose it is."""
        self._owed_bytes += length
        # Longer before the window is used up than a frame may be.
        if self._owed_bytes >= GIVEN_BACK_AT:
            self._write(frames.window_update(0, self._owed_bytes))
            self._owed_bytes = 0
        self._data_left = length
        self._data_ends = bool(flags & frames.END_STREAM)
        if not (length or self._data_ends):
            self.idle_frames += 1
        stream = self._data_stream = self.streams.get(stream_id)
        if stream is None:
            self._require_known(stream_id)
            self._refuse(stream_id, ErrorCode.STREAM_CLOSED)
            return
        if stream.has_ended:
            self._data_stream = None
            self._stream_broken(StreamBroken(stream_id, ErrorCode.STREAM_CLOSED, "it had ended"))
            return
        stream.owed_bytes += length
        if stream.owed_bytes > OWN_STREAM_WINDOW:
            self._data_stream = None
            reason = "more DATA than the stream's window"
            self._stream_broken(StreamBroken(stream_id, ErrorCode.FLOW_CONTROL_ERROR, reason))

    def _data_piece(self, piece: memoryview) -> None:
        stream = self._data_stream
        if stream is None or stream.is_closed:
            return
        try:
            stream.take(piece)
        except MessageRefused as refusal:
            self._data_stream = None
            self.message_refused(stream, refusal)

    def _data_came(self) -> None:
        """A DATA frame is over."""
        stream, self._data_stream = self._data_stream, None
        if stream is None or stream.is_closed:
            return
        if self._data_ends:
            if stream.is_within_message:
                reason = "the stream ends within a message"
                self._stream_broken(StreamBroken(stream.id, ErrorCode.PROTOCOL_ERROR, reason))
                return
            stream.peer_ended()
            self.drop_if_over(stream)
        elif stream.owed_bytes >= OWN_STREAM_WINDOW // 2 and stream.keeps_up:
            self.give_back(stream)

    def _padded_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        data = frames.unpadded(flags, payload)
        if payload and not data:
            self.idle_frames += 1
        self._begin_data(flags, stream_id, len(payload))
        self._data_left = 0
        self.comes_alone = False
        self._data_piece(memoryview(data))
        self._data_came()
