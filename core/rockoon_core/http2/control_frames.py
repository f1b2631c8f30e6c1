"""Frames about a connection and its streams that carry nothing: settings, windows, pings, ends."""

from typing import TYPE_CHECKING

from rockoon_core.http2 import frames
from rockoon_core.http2.frames import ConnectionBroken, ErrorCode, StreamBroken
from rockoon_core.http2.sending import STREAM_COST, Http2Sending

if TYPE_CHECKING:
    from rockoon_core.http2.messages import MessageStream


class ControlFrames(Http2Sending):
    """What `Http2Connection` knows of its peer by such frames.

    Args:
        is_server: which side this is.

    Attributes:
        streams: that are open, by number.
        peer_streams_max: how many streams the peer takes at once.
    """

    def __init__(self, *, is_server: bool) -> None:
        super().__init__()
        self._is_server = is_server
        self.awaits_settings = True
        self.streams: dict[int, MessageStream] = {}
        self._last_peer_stream = 0
        self._last_own_stream = 0
        self.peer_streams_max = 1 << 31

    def settings_came(self) -> None:
        """The peer has said its settings."""

    def ping_acknowledged(self, payload: bytes) -> None:
        """The peer has acknowledged a PING of this side."""

    def peer_goes(self, last_stream_id: int, code: int) -> None:
        """The peer takes no further streams."""

    def _require_known(self, stream_id: int) -> None:
        """Raises ConnectionBroken for a stream that was never opened."""
        if stream_id == 0:
            raise ConnectionBroken(ErrorCode.PROTOCOL_ERROR, "stream 0 has no such frame")
        of_peer = bool(stream_id & 1) == self._is_server
        if stream_id > (self._last_peer_stream if of_peer else self._last_own_stream):
            raise ConnectionBroken(ErrorCode.PROTOCOL_ERROR, f"stream {stream_id} is idle")

    def _priority(self, _flags: int, stream_id: int, payload: bytes) -> None:
        self.idle_frames += 1
        if stream_id == 0:
            raise ConnectionBroken(ErrorCode.PROTOCOL_ERROR, "a priority without a stream")
        if len(payload) != 5:
            raise StreamBroken(stream_id, ErrorCode.FRAME_SIZE_ERROR, "a priority has five bytes")
        (on,) = frames.NUMBER.unpack_from(payload)
        if on & frames.STREAM_ID_MAX == stream_id:
            raise StreamBroken(stream_id, ErrorCode.PROTOCOL_ERROR, "it depends on itself")

    def _settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        self.idle_frames += 1
        if stream_id:
            raise ConnectionBroken(ErrorCode.PROTOCOL_ERROR, "settings of a stream")
        if len(payload) % 6 or (flags & frames.ACK and payload):
            raise ConnectionBroken(ErrorCode.FRAME_SIZE_ERROR, "settings have six bytes each")
        if flags & frames.ACK:
            return
        self.awaits_settings = False
        # Of one identifier the last value has effect, so each costs one pass over the streams.
        for name, value in dict(frames.SETTING.iter_unpack(payload)).items():
            self._setting(name, value)
        self._write(frames.frame(frames.SETTINGS, frames.ACK, 0))
        self.settings_came()
        self._pump()

    def _setting(self, name: int, value: int) -> None:
        if name == frames.INITIAL_WINDOW_SIZE:
            if value > frames.WINDOW_MAX:
                raise ConnectionBroken(ErrorCode.FLOW_CONTROL_ERROR, "a window is too wide")
            self.turn_left -= STREAM_COST * len(self.streams)
            for stream in self.streams.values():
                stream.send_window += value - self.peer_window
                if stream.send_window > frames.WINDOW_MAX:
                    raise ConnectionBroken(ErrorCode.FLOW_CONTROL_ERROR, "a window is too wide")
            self.peer_window = value
        elif name == frames.MAX_FRAME_SIZE:
            if not frames.FRAME_BYTES_MIN <= value <= frames.FRAME_BYTES_MAX:
                raise ConnectionBroken(ErrorCode.PROTOCOL_ERROR, "no such frame size")
            self.peer_frame_bytes = value
        elif name == frames.ENABLE_PUSH and value > 1:
            raise ConnectionBroken(ErrorCode.PROTOCOL_ERROR, "push is on or off")
        elif name == frames.MAX_CONCURRENT_STREAMS:
            self.peer_streams_max = value

    def _push_promise(self, _flags: int, _stream_id: int, _payload: bytes) -> None:
        raise ConnectionBroken(ErrorCode.PROTOCOL_ERROR, "nothing may be pushed")

    def _ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        self.idle_frames += 1
        if stream_id:
            raise ConnectionBroken(ErrorCode.PROTOCOL_ERROR, "a ping of a stream")
        if len(payload) != 8:
            raise ConnectionBroken(ErrorCode.FRAME_SIZE_ERROR, "a ping has eight bytes")
        if flags & frames.ACK:
            self.ping_acknowledged(payload)
        else:
            self._write(frames.frame(frames.PING, frames.ACK, 0, payload))

    def _goaway(self, _flags: int, stream_id: int, payload: bytes) -> None:
        self.idle_frames += 1
        if stream_id:
            raise ConnectionBroken(ErrorCode.PROTOCOL_ERROR, "a stream does not go away")
        if len(payload) < 8:
            raise ConnectionBroken(ErrorCode.FRAME_SIZE_ERROR, "going away takes eight bytes")
        last, code = frames.TWO_NUMBERS.unpack_from(payload)
        self.peer_goes(last & frames.STREAM_ID_MAX, code)

    def _window_update(self, _flags: int, stream_id: int, payload: bytes) -> None:
        self.idle_frames += 1
        if len(payload) != 4:
            raise ConnectionBroken(ErrorCode.FRAME_SIZE_ERROR, "a window has four bytes")
        more = frames.NUMBER.unpack(payload)[0] & frames.STREAM_ID_MAX
        if stream_id == 0:
            self._send_window += more
            self.granted_bytes += more
            if not more or self._send_window > frames.WINDOW_MAX:
                code = ErrorCode.FLOW_CONTROL_ERROR if more else ErrorCode.PROTOCOL_ERROR
                raise ConnectionBroken(code, "no such window")
            self._pump()
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            self._require_known(stream_id)
            return
        stream.send_window += more
        if not more or stream.send_window > frames.WINDOW_MAX:
            code = ErrorCode.FLOW_CONTROL_ERROR if more else ErrorCode.PROTOCOL_ERROR
            raise StreamBroken(stream_id, code, "no such window")
        if stream.pending:
            self._pump()
