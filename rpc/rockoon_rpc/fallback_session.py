"""HTTP/2 session on the h2 library for Python: the common part of servers and clients.

The session passes received bytes to the h2 library frame by frame. It reads the header of each
frame itself: it counts the input of a turn, refuses a frame that is too long before its bytes
arrive, and handles GOAWAY, because h2 would refuse every later frame. Messages wait in the session
for flow-control windows; h2 never holds more than a megabyte.
"""

import contextlib
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from h2 import events as received
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.exceptions import ProtocolError, StreamClosedError
from h2.settings import SettingCodes, Settings
from h2.utilities import HeaderValidationFlags, validate_headers
from hpack import HPACKError
from hyperframe.exceptions import HyperframeError
from hyperframe.frame import GoAwayFrame, RstStreamFrame

from rockoon_rpc import session as events
from rockoon_rpc.fallback_messages import (
    INTERNAL,
    RESOURCE_EXHAUSTED,
    BlockDecoder,
    Headers,
    MessageReader,
    MessageRefused,
)
from rockoon_rpc.limits import Limits
from rockoon_rpc.session import PREFIX, Buffer, ErrorCode, Event

STREAM_ID_MAX = (1 << 31) - 1
_WINDOW_DEFAULT = 65_535
_PREFACE_BYTES = 24
_HEAD_BYTES = 9
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _GOAWAY, _CONTINUATION = 0, 1, 3, 4, 7, 9
_ACK, _END_HEADERS = 1, 4
# A turn has one frame for each 512 of its bytes. Long header lists, and SETTINGS that change the
# windows of many streams, count as further frames.
_BYTES_PER_FRAME = 512
_LIST_BYTES_FREE = 1 << 10
_LIST_BYTES_PER_FRAME = 64
_STREAMS_PER_FRAME = 32
# DATA in the output.
_OUTPUT_BYTES_MAX = 1 << 20
# A header block that is longer than a call's headers may be is decoded for the connection's table
# and refused; one that is longer by this factor ends the connection.
_HEADER_LIST_FACTOR = 4
# Frames without effect that an honest peer sends with a call (PING, SETTINGS, WINDOW_UPDATE), and
# received bytes of DATA for which it sends one.
_IDLE_FRAMES_PER_CALL = 4
_SENT_BYTES_PER_IDLE_FRAME = 8
_IDLE_FRAMES_FIRST = 16
_IDLE_FRAMES_SAVED_MAX = 10_000
_CODE_NAMES = {int(code): code.name for code in ErrorCode}
# Streams that the library has before it removes closed ones.
_STREAMS_MIN = 64
# Streams whose end is remembered.
_ENDED_STREAMS_MAX = 4_096


class ConnectionBroken(Exception):
    """Raised if the peer has violated the HTTP/2 protocol.

    Attributes:
        code: HTTP/2 error code.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class _H2Connection(H2Connection):
    """The h2 library's connection, with a cheaper removal of closed streams.

    h2 counts its streams and removes closed ones for each new stream. This class does so only when
    their number has doubled; the session checks the limit of open streams itself.
    """

    MAX_CLOSED_STREAMS = _ENDED_STREAMS_MAX

    def __init__(self, config: H2Configuration) -> None:
        super().__init__(config)
        self._streams_max = _STREAMS_MIN

    def _open_streams(self, remainder: int) -> int:
        if len(self.streams) < self._streams_max:
            return 0
        count = super()._open_streams(remainder)
        self._streams_max = 2 * count + _STREAMS_MIN
        return count


class SessionStream:
    """State of one HTTP/2 stream.

    Attributes:
        is_one: the peer sends exactly one message.
        message: that message, once it is complete.
        unfinished_bytes: received bytes of an incomplete message, plus the bytes of `message`.
        owed_bytes: received bytes for which no WINDOW_UPDATE was sent yet.
        queue: bytes to send that are not in the output yet.
        ending: trailers to send after the queue; empty: the last DATA frame ends the stream.
        wants_room: the session must report a ROOM event once the queue is in the output.
        has_ended, sent_last: the peer's last frame was received; ours is in the output.
        has_begun: the headers of the reply were sent (server) or received (client).
    """

    __slots__ = (
        "ending", "has_begun", "has_ended", "id", "is_held", "is_one", "is_waiting", "message",
        "metadata", "metadata_bytes", "owed_bytes", "queue", "reader", "route", "sent_last",
        "timeout", "unfinished_bytes", "wants_room",
    )  # fmt: skip

    def __init__(self, stream_id: int, is_one: bool, message_bytes_max: int) -> None:
        self.id = stream_id
        self.is_one = is_one
        self.message: bytes | None = None
        self.reader = MessageReader(message_bytes_max)
        self.unfinished_bytes = self.owed_bytes = 0
        self.queue: deque[memoryview] = deque()
        self.ending: Headers | None = None
        self.is_held = self.is_waiting = self.wants_room = False
        self.has_ended = self.sent_last = self.has_begun = False
        # Route, timeout and metadata of a server's call until the call is reported.
        self.route: Any = None
        self.timeout: float | None = None
        self.metadata: events.Metadata = ()
        self.metadata_bytes = 0


class LibrarySession:
    """Base of the server's and the client's HTTP/2 session.

    Args:
        limits: limits of the connection.
        is_client: True for a client's session, False for a server's.
    """

    # Names of the methods that handle the library's events; a subclass adds those of its side.
    event_methods: ClassVar[dict[type, str]] = {
        received.RemoteSettingsChanged: "_ready",
        received.PingAckReceived: "_pong",
        received.DataReceived: "_data",
        received.StreamReset: "_stream_reset",
    }
    _handlers: ClassVar[dict[type, Callable[..., None]]] = {}

    def __init_subclass__(cls) -> None:
        cls._handlers = {kind: getattr(cls, name) for kind, name in cls.event_methods.items()}

    def __init__(self, limits: Limits, *, is_client: bool) -> None:
        self._limits = limits
        self._is_client = is_client
        self._library = _new_connection(limits, is_client)
        self._decoder = BlockDecoder(_HEADER_LIST_FACTOR * limits.header_list_bytes_max)
        self._library.decoder = self._decoder
        self._pieces: list[bytes] = []
        self._streams: dict[int, SessionStream] = {}
        self._waiting: deque[SessionStream] = deque()
        self._events: list[Event] = []
        self._kept = bytearray()
        self._preface_left = 0 if is_client else _PREFACE_BYTES
        self._block_bytes = 0
        self._is_ready = self._is_over = self._is_behind = False
        # The highest number of a stream that the client has opened.
        self._last_stream = 0
        self._owed_bytes = self._data_bytes = self._queued_bytes = self._unfinished_bytes = 0
        # New calls of the turn, and earlier ones whose requests became complete in it.
        self._calls = self._completed = 0
        self._frames = self._idle_frames = self._resets = 0
        self._idle_frames_saved = float(_IDLE_FRAMES_FIRST)
        # Streams that both sides have ended, and streams that this side has reset.
        self._ended: OrderedDict[int, None] = OrderedDict()
        self._was_reset: OrderedDict[int, None] = OrderedDict()
        self._pings = 0
        # Bytes that the peer may still send on streams that this side has ended before the peer.
        self._late_bytes = 0

    # Input.

    def receive(self, data: Buffer) -> list[Event]:
        if not self._is_over:
            self._kept += data
            try:
                self._take_turn()
            except ConnectionBroken as failure:
                self._break(failure.code, str(failure))
            else:
                self._end_turn()
        return self._take_events()

    def _take_events(self) -> list[Event]:
        found, self._events = self._events, []
        return found

    @property
    def is_behind(self) -> bool:
        return self._is_behind

    @property
    def is_idle(self) -> bool:
        return not (self._is_behind or self._events or self.unsent_bytes)

    def _take_turn(self) -> None:
        kept, limits = self._kept, self._limits
        frames_max = max(limits.turn_bytes // _BYTES_PER_FRAME, 1)
        at = self._frames = 0
        self._is_behind = False
        if self._preface_left:
            at = min(self._preface_left, len(kept))
            self._feed(bytes(kept[:at]))
            self._preface_left -= at
        end = len(kept)
        while end - at >= _HEAD_BYTES and not self._is_over:
            length = int.from_bytes(kept[at : at + 3])
            if length > limits.frame_bytes_max:
                reason = f"a frame of {length} bytes is longer than {limits.frame_bytes_max} bytes"
                raise ConnectionBroken(ErrorCode.FRAME_SIZE_ERROR, reason)
            behind = at + _HEAD_BYTES + length
            if behind > end:
                break
            if (
                at >= limits.turn_bytes
                or self._frames >= frames_max
                or self._calls + self._completed >= limits.turn_calls
            ):
                self._is_behind = True
                break
            frame = bytes(kept[at:behind])
            at = behind
            self._receive_frame(frame)
        del kept[:at]

    def _receive_frame(self, frame: bytes) -> None:
        """Handle one complete frame."""
        kind, flags = frame[3], frame[4]
        stream_id = int.from_bytes(frame[5:9]) & STREAM_ID_MAX
        self._frames += 1
        if not self._is_ready and (kind != _SETTINGS or flags & _ACK):
            raise ConnectionBroken(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if kind in (_HEADERS, _CONTINUATION):
            self._count_block(kind, flags, len(frame) - _HEAD_BYTES)
            if self._is_client and not stream_id & 1:
                # The library would let a server open it.
                reason = f"HEADERS on the stream {stream_id}, which only a push could open"
                raise ConnectionBroken(ErrorCode.PROTOCOL_ERROR, reason)
        elif self._block_bytes:
            # The library refuses any frame within a header block.
            pass
        elif kind == _SETTINGS and flags & _ACK and len(frame) > _HEAD_BYTES:
            reason = "an acknowledgement of SETTINGS has values"
            raise ConnectionBroken(ErrorCode.FRAME_SIZE_ERROR, reason)
        elif kind == _GOAWAY:
            self._idle_frames += 1
            self._goaway(frame)
            return
        elif kind == _RST_STREAM:
            self._count_reset(stream_id)
        elif kind == _DATA and (stream_id in self._streams or self._is_late(len(frame))):
            pass
        else:
            self._idle_frames += 1
            if kind == _SETTINGS:
                self._frames += len(self._library.streams) // _STREAMS_PER_FRAME
        found = self._feed(frame)
        if stream_id in self._was_reset:
            # The frame was on its way; the library answers each with a further RST_STREAM.
            again = RstStreamFrame(stream_id, error_code=ErrorCode.STREAM_CLOSED).serialize()
            self._put(self._library.data_to_send().removesuffix(again))
        if kind in (_HEADERS, _CONTINUATION):
            list_bytes = self._decoder.list_bytes
            self._frames += max(list_bytes - _LIST_BYTES_FREE, 0) // _LIST_BYTES_PER_FRAME
        for event in found:
            handler = self._handlers.get(type(event))
            if handler is not None:
                handler(self, event)

    def _is_late(self, frame_bytes: int) -> bool:
        """Return whether DATA belongs to a stream that this side ended while the DATA was on its
        way."""
        if self._late_bytes < frame_bytes:
            return False
        self._late_bytes -= frame_bytes
        return True

    def _feed(self, data: bytes) -> list[Any]:
        """Pass bytes to the h2 library; return its events."""
        try:
            return self._library.receive_data(data)
        except Exception as failure:
            # Whatever the library raises, it raises it because of the peer's bytes.
            code = int(getattr(failure, "error_code", ErrorCode.PROTOCOL_ERROR))
            # It has put out GOAWAY; `_break` sends one with a text.
            goaway = GoAwayFrame(
                last_stream_id=self._library.highest_inbound_stream_id, error_code=code
            ).serialize()
            self._put(self._library.data_to_send().removesuffix(goaway))
            if isinstance(failure.__cause__, HPACKError) and code == ErrorCode.PROTOCOL_ERROR:
                code = ErrorCode.COMPRESSION_ERROR
            raise ConnectionBroken(code, _reason(failure)) from failure

    def _count_block(self, kind: int, flags: int, length: int) -> None:
        # At least one byte, so that an empty block is seen too.
        self._block_bytes = length + 1 if kind == _HEADERS else self._block_bytes + length
        if self._block_bytes > _HEADER_LIST_FACTOR * self._limits.header_list_bytes_max:
            raise ConnectionBroken(ErrorCode.ENHANCE_YOUR_CALM, "a header block is too long")
        if kind == _CONTINUATION and not length:
            self._idle_frames += 1
        if flags & _END_HEADERS:
            self._block_bytes = 0

    def _count_reset(self, stream_id: int) -> None:
        """Count an RST_STREAM of the peer; report LATE_RESET if the stream had already ended."""
        if stream_id > self._last_stream or not stream_id & 1:
            # The library ignores these.
            reason = f"stream {stream_id} is reset, and was never opened"
            raise ConnectionBroken(ErrorCode.PROTOCOL_ERROR, reason)
        if stream_id in self._streams:
            self._resets += 1
        elif stream_id in self._ended:
            del self._ended[stream_id]
            self._resets += 1
            self._reset_late(stream_id)
        else:
            self._idle_frames += 1

    def _reset_late(self, stream_id: int) -> None:
        """Handle an RST_STREAM of the peer for a stream that both sides had ended."""

    def _goaway(self, frame: bytes) -> None:
        try:
            parsed = GoAwayFrame.parse_frame_header(memoryview(frame[:_HEAD_BYTES]))[0]
            parsed.parse_body(memoryview(frame[_HEAD_BYTES:]))
        except HyperframeError as failure:
            short = len(frame) < _HEAD_BYTES + 8
            code = ErrorCode.FRAME_SIZE_ERROR if short else ErrorCode.PROTOCOL_ERROR
            raise ConnectionBroken(code, _reason(failure)) from failure
        assert isinstance(parsed, GoAwayFrame)
        text = parsed.additional_data.decode("utf-8", "backslashreplace")
        last_stream = parsed.last_stream_id & STREAM_ID_MAX
        self._events.append((events.GOAWAY, last_stream, parsed.error_code, text))
        self._left(last_stream)

    def _left(self, last_stream: int) -> None:
        """Handle GOAWAY: the peer accepts no streams above `last_stream`."""

    def _end_turn(self) -> None:
        """End a turn: report the cost that the peer caused (WASTE), and send queued messages as far
        as the flow-control windows allow."""
        saved = self._idle_frames_saved + self._calls * _IDLE_FRAMES_PER_CALL
        waste, self._idle_frames = self._idle_frames - saved, 0
        resets, self._resets = self._resets, 0
        self._calls = self._completed = 0
        self._idle_frames_saved = min(max(-waste, 0.0), _IDLE_FRAMES_SAVED_MAX)
        if waste >= 1 or resets:
            self._events.append((events.WASTE, max(int(waste), 0), resets))
        self._pump()

    def _ready(self, _event: received.RemoteSettingsChanged) -> None:
        if not self._is_ready:
            self._is_ready = True
            self._events.append((events.READY,))

    def _pong(self, _event: received.PingAckReceived) -> None:
        if self._pings:
            self._pings -= 1
            if self._pings:
                self._library.ping(bytes(8))
            self._events.append((events.PONG,))

    def _data(self, event: received.DataReceived) -> None:
        length = event.flow_controlled_length
        if not event.data and event.stream_ended is None:
            # Empty, or padding alone.
            self._idle_frames += 1
        self._owed_bytes += length
        if self._owed_bytes >= self._limits.connection_window_bytes // 4:
            self._library.increment_flow_control_window(self._owed_bytes)
            self._owed_bytes = 0
        stream = self._streams.get(event.stream_id)
        if stream is None:
            return
        stream.owed_bytes += length
        stream.has_ended = event.stream_ended is not None
        try:
            self._read(stream, event.data)
            self._count_unfinished(stream)
        except MessageRefused as refusal:
            self._refuse_messages(stream, refusal.status, str(refusal))
        if stream.id in self._streams:
            self._give_back(stream)

    def _read(self, stream: SessionStream, data: bytes) -> None:
        """Handle message bytes of a stream. Raises MessageRefused."""
        for message in stream.reader.read(data):
            if not stream.is_one:
                self._events.append((events.MESSAGE, stream.id, message))
            elif stream.message is None:
                stream.message = message
            else:
                raise MessageRefused(INTERNAL, "the method has one message, not two")

    def _count_unfinished(self, stream: SessionStream) -> None:
        """Update the count of a stream's unfinished bytes. Raises MessageRefused."""
        held = stream.reader.held_bytes + len(stream.message or b"")
        self._unfinished_bytes += held - stream.unfinished_bytes
        stream.unfinished_bytes = held
        most = self._limits.unfinished_bytes_max
        if self._unfinished_bytes > most and not stream.has_ended:
            reason = f"unfinished messages of the connection are longer than {most} bytes"
            raise MessageRefused(RESOURCE_EXHAUSTED, reason)

    def _refuse_messages(self, stream: SessionStream, status: int, reason: str) -> None:
        """End a call because of an invalid message; subclasses override it."""
        raise NotImplementedError

    def _give_back(self, stream: SessionStream) -> None:
        """Send WINDOW_UPDATE for a stream, unless the application holds the stream."""
        if (
            stream.owed_bytes >= self._limits.stream_window_bytes // 4
            and not stream.is_held
            and not stream.has_ended
        ):
            self._library.increment_flow_control_window(stream.owed_bytes, stream.id)
            stream.owed_bytes = 0

    def _stream_reset(self, event: received.StreamReset) -> None:
        if not event.remote_reset:
            self._resets += 1
        stream = self._streams.get(event.stream_id or 0)
        if stream is not None:
            self._forget(stream)
            code = int(event.error_code or 0)
            name = _CODE_NAMES.get(code, str(code))
            by = "the peer has reset" if event.remote_reset else "the peer has broken"
            self._events.append((events.RESET, stream.id, code, f"{by} the stream: {name}"))

    def _check_headers(self, event: Any, *, is_trailer: bool) -> str:
        """Return the violation of RFC 9113 in a list of headers; "" if there is none."""
        flags = HeaderValidationFlags(
            is_client=self._is_client,
            is_trailer=is_trailer,
            is_response_header=self._is_client and not is_trailer,
            is_push_promise=False,
        )
        try:
            for _ in validate_headers(event.headers, flags):
                pass
        except ProtocolError as failure:
            return _reason(failure)
        return ""

    def _refuse_stream(self, stream_id: int, code: int, reason: str) -> None:
        """Reset a stream because of the peer; if the application knows the stream, report RESET."""
        self._resets += 1
        self._reset_stream(stream_id, code)
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._forget(stream)
            self._events.append((events.RESET, stream_id, code, reason))

    def hold(self, stream: int) -> None:
        found = self._streams.get(stream)
        if found is not None:
            found.is_held = True

    def resume(self, stream: int) -> None:
        found = self._streams.get(stream)
        if found is not None:
            found.is_held = False
            self._give_back(found)

    # Output.

    def output(self) -> tuple[Sequence[Buffer], Sequence[Event]]:
        self._collect()
        pieces, self._pieces = self._pieces, []
        self._data_bytes = 0
        self._pump()
        return pieces, self._take_events()

    def _collect(self) -> None:
        """Move the bytes that h2 has produced to the output of this session."""
        self._put(self._library.data_to_send())

    def _put(self, data: bytes) -> None:
        if data:
            self._pieces.append(data)

    @property
    def unsent_bytes(self) -> int:
        self._collect()
        return self._queued_bytes + sum(map(len, self._pieces))

    def send(self, stream: int, message: bytes | list[bytes], framed: bool = False) -> bool:
        found = self._streams.get(stream)
        if found is None or found.ending is not None:
            return True
        self._queue(found, message, framed)
        return self._flush(found)

    def _queue(self, stream: SessionStream, message: bytes | list[bytes], framed: bool) -> None:
        pieces = message if isinstance(message, list) else [message]
        length = sum(map(len, pieces))
        if not framed:
            pieces = [PREFIX.pack(0, length), *pieces]
            length += PREFIX.size
        stream.queue.extend(memoryview(piece) for piece in pieces if len(piece))
        self._queued_bytes += length

    def _flush(self, stream: SessionStream) -> bool:
        """Move queued bytes of a stream to the output while it has room; return whether all were
        moved."""
        if stream.is_waiting:
            stream.wants_room = True
            return False
        while stream.queue:
            if not self._send_frame(stream):
                stream.is_waiting = stream.wants_room = True
                self._waiting.append(stream)
                return False
        self._send_ending(stream)
        return True

    def _pump(self) -> None:
        """Send one frame of each waiting stream in rotation while windows and output have room."""
        stalled = 0
        while self._waiting and stalled < len(self._waiting):
            if min(self._library.outbound_flow_control_window, self._output_room) <= 0:
                return
            stream = self._waiting[0]
            self._waiting.rotate(-1)
            stalled = 0 if self._send_frame(stream) else stalled + 1
            if stream.queue:
                continue
            self._waiting.pop()
            stream.is_waiting = False
            if stream.wants_room:
                stream.wants_room = False
                self._events.append((events.ROOM, stream.id))
            self._send_ending(stream)

    @property
    def _output_room(self) -> int:
        return _OUTPUT_BYTES_MAX - self._data_bytes

    def _send_frame(self, stream: SessionStream) -> bool:
        """Move one DATA frame to the output; return False if there is no room."""
        library = self._library
        room = min(
            library.local_flow_control_window(stream.id),
            library.max_outbound_frame_size,
            self._output_room,
        )
        if room <= 0:
            return False
        queue = stream.queue
        parts: list[memoryview] = []
        while queue and room:
            piece = queue.popleft()
            if len(piece) > room:
                queue.appendleft(piece[room:])
                piece = piece[:room]
            parts.append(piece)
            room -= len(piece)
        data = b"".join(parts)
        is_last = not queue and stream.ending == []
        library.send_data(stream.id, data, end_stream=is_last)
        self._data_bytes += len(data)
        self._queued_bytes -= len(data)
        self._idle_frames_saved += len(data) / _SENT_BYTES_PER_IDLE_FRAME
        if is_last:
            self._sent_last(stream)
        return True

    def _send_ending(self, stream: SessionStream) -> None:
        """Send the end of a stream if the application has ended it."""
        if stream.ending is None or stream.sent_last:
            return
        if stream.ending:
            self._library.send_headers(stream.id, stream.ending, end_stream=True)
        else:
            self._library.end_stream(stream.id)
        self._sent_last(stream)

    def _sent_last(self, stream: SessionStream) -> None:
        """Called when this side's last frame of a stream is in the output; subclasses extend it."""
        stream.sent_last = True

    def reset(self, stream: int, code: int) -> None:
        found = self._streams.get(stream)
        if found is not None:
            self._forget(found)
            self._reset_stream(stream, code)

    def _reset_stream(self, stream_id: int, code: int) -> None:
        """Send RST_STREAM if one side has not ended the stream."""
        with contextlib.suppress(StreamClosedError):
            self._library.reset_stream(stream_id, code)
            remember(self._was_reset, stream_id)
            more = self._limits.stream_window_bytes
            self._late_bytes = min(self._late_bytes + more, self._limits.connection_window_bytes)

    def ping(self) -> None:
        if self._is_over:
            return
        if not self._pings:
            self._library.ping(bytes(8))
        self._pings = min(self._pings + 1, 2)

    def close(self, code: int, text: str) -> None:
        if not self._is_over:
            self._break(code, text)

    # Ends.

    def _break(self, code: int, reason: str) -> None:
        self._is_over = True
        self._is_behind = False
        self._kept.clear()
        self._streams.clear()
        self._waiting.clear()
        self._queued_bytes = self._unfinished_bytes = 0
        self._write_goaway(self._last_stream, code, reason)
        self._events.append((events.BROKEN, code, reason))

    def _write_goaway(self, last_stream: int, code: int, reason: str) -> None:
        """Encode GOAWAY without h2, which would refuse all later calls of the connection."""
        self._collect()
        text = reason.encode("utf-8", "replace")[:256]
        last = 0 if self._is_client else last_stream
        self._pieces.append(
            GoAwayFrame(last_stream_id=last, error_code=code, additional_data=text).serialize()
        )

    def _forget(self, stream: SessionStream) -> None:
        """Remove a stream that has ended."""
        self._streams.pop(stream.id, None)
        if stream.is_waiting:
            self._waiting.remove(stream)
        stream.is_waiting = stream.wants_room = False
        self._queued_bytes -= sum(map(len, stream.queue))
        self._unfinished_bytes -= stream.unfinished_bytes
        stream.unfinished_bytes = 0
        stream.queue.clear()

    @property
    def open_streams(self) -> int:
        return len(self._streams)


def _new_connection(limits: Limits, is_client: bool) -> H2Connection:
    """Create the h2 connection; its output has the connection preface and SETTINGS."""
    library = _H2Connection(
        H2Configuration(
            client_side=is_client,
            # The session checks received headers itself: the library ends the connection for one
            # call's fault. Sent headers are right as they are made.
            validate_inbound_headers=False,
            normalize_inbound_headers=False,
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
    )
    values = {
        SettingCodes.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
        SettingCodes.MAX_FRAME_SIZE: limits.frame_bytes_max,
        SettingCodes.MAX_HEADER_LIST_SIZE: limits.header_list_bytes_max,
        SettingCodes.MAX_CONCURRENT_STREAMS: 0 if is_client else limits.streams_max,
    }
    if is_client:
        values[SettingCodes.ENABLE_PUSH] = 0
    library.local_settings = Settings(client=is_client, initial_values=values)
    library.initiate_connection()
    # The session resets streams beyond the limit; the library would end the connection.
    values[SettingCodes.MAX_CONCURRENT_STREAMS] = STREAM_ID_MAX
    library.local_settings = Settings(client=is_client, initial_values=values)
    library.max_inbound_frame_size = limits.frame_bytes_max
    if limits.connection_window_bytes > _WINDOW_DEFAULT:
        library.increment_flow_control_window(limits.connection_window_bytes - _WINDOW_DEFAULT)
    return library


def remember(streams: OrderedDict[int, None], stream_id: int) -> None:
    """Add a stream number to a bounded set; the oldest numbers are discarded."""
    streams[stream_id] = None
    if len(streams) > _ENDED_STREAMS_MAX:
        streams.popitem(last=False)


def _reason(failure: Exception) -> str:
    return str(failure) or type(failure).__name__
