"""One side of an HTTP/2 connection as an asyncio protocol: frames, windows, settings, liveness.

Bytes are received into a buffer that all connections of an owner share, so that an idle connection
costs no buffer; those in the middle of a long message straight into that message.

Invariants
- A frame is handled before anything behind it is looked at.
- What is sent on a stream keeps its order; streams that wait for the connection's window take
  turns.
- Bytes of DATA count against both windows as they come, read or not; the connection's is given back
  at once (one stream that is not read keeps no other waiting), a stream's when its messages are
  taken.
- A peer that does not read is not read: its frames cannot pile answers up.
- A connection has one turn in each iteration of the loop: it receives at most `TURN_BYTES`, and
  handles frames until `TURN_COST` is used up. Further bytes wait for the next iteration, so that
  no peer delays other connections, leases or replication by more than one turn.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Mapping
from typing import Any

from rockoon_core.http2 import frames
from rockoon_core.http2.budgets import Budget
from rockoon_core.http2.data_frames import MESSAGE_COST, OWN_CONNECTION_WINDOW, DataFrames
from rockoon_core.http2.frames import ConnectionBroken, ErrorCode, StreamBroken
from rockoon_core.http2.headers import HEADERS_TOO_LONG, LIST_BYTES_MAX, Header, HeaderReader
from rockoon_core.http2.liveness import Liveness, PeerWatch
from rockoon_core.http2.messages import MessageStream
from rockoon_core.http2.sending import OWN_STREAM_WINDOW, TURN_COST

# Our own: what peers may send. Long frames, since batches are of megabytes.
OWN_FRAME_BYTES_MAX = 1 << 20
# All frames but DATA are handled whole.
CONTROL_BYTES_MAX = 64 << 10
# Encoded; the decoded list may have no more.
HEADER_BLOCK_BYTES_MAX = LIST_BYTES_MAX
CONTINUATIONS_MAX = 64
# Received in one turn; into the memory of a long message, where bytes cost no steps, more.
TURN_BYTES = 64 << 10
DIRECT_BYTES_MAX = 1 << 20
# Of a turn's cost: a frame that is not DATA, a new call beside its frame, and a byte of a list of
# headers that is decoded.
FRAME_COST = 512
CALL_COST = 2 << 10
HEADER_BYTE_COST = 8
# Until the next turn of a connection that has used up half a turn for nothing: frames without
# effect, and streams that are reset.
WASTE_COST_MAX = TURN_COST // 2
WASTE_PAUSE_SECONDS = 0.01
# What may wait for the transport before senders wait.
WRITE_HIGH_BYTES = 1 << 20
# What may wait for it at all: answers to frames that ask for one.
WRITE_BYTES_MAX = 8 << 20
# So long a peer may take to end its side of a connection.
CLOSE_SECONDS_MAX = 2.0
LEAVE_SECONDS = 0.5
# If the peer resets more streams, or makes this server reset more streams, the connection ends. A
# consumer that cancels a long poll resets its stream.
RESETS_BURST_MAX = 20_000
RESETS_PER_SECOND_MAX = 2_000
# If the peer sends more frames without effect, the connection ends: PING, SETTINGS, PRIORITY,
# WINDOW_UPDATE, GOAWAY, empty DATA, unknown frames. Calls and sent answers allow more, because the
# peer opens windows for them.
IDLE_FRAMES_BURST_MAX = 10_000
IDLE_FRAMES_PER_SECOND_MAX = 1_000
IDLE_FRAMES_PER_CALL = 4
SENT_BYTES_PER_IDLE_FRAME = 8


class Http2Connection(DataFrames, asyncio.BufferedProtocol):
    """What server and client have in common. Not for several loops.

    Args:
        message_bytes_max: longer messages are refused.
        is_server: which side this is.
        liveness: None never asks.
    """

    def __init__(
        self,
        message_bytes_max: int,
        *,
        is_server: bool,
        liveness: Liveness | None,
    ) -> None:
        super().__init__(is_server=is_server)
        self._message_bytes_max = message_bytes_max
        self._liveness = liveness
        self._rest = b""
        self._direct = False
        self._reader = HeaderReader()
        self._is_leaving = False
        # Reading is paused; the next turn is scheduled.
        self._is_paused = self._has_next_turn = False
        self._next_turn_after = 0.0
        self._reset_budget = Budget(RESETS_BURST_MAX, RESETS_PER_SECOND_MAX)
        self._idle_budget = Budget(IDLE_FRAMES_BURST_MAX, IDLE_FRAMES_PER_SECOND_MAX)
        self._watch: PeerWatch | None = None
        self._handlers: Mapping[int, Callable[[int, int, bytes], None]] = {
            frames.DATA: self._padded_data,
            frames.HEADERS: self._headers_frame,
            frames.PRIORITY: self._priority,
            frames.RST_STREAM: self._rst_stream,
            frames.SETTINGS: self._settings,
            frames.PUSH_PROMISE: self._push_promise,
            frames.PING: self._ping,
            frames.GOAWAY: self._goaway,
            frames.WINDOW_UPDATE: self._window_update,
            frames.CONTINUATION: self._continuation,
        }

    @property
    def signs_of_life(self) -> int:
        """How often something came from the peer; 0 of a connection that is not watched."""
        return 0 if self._watch is None else self._watch.signs

    # The transport's callbacks.

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        # asyncio does that only for sockets that were made with a protocol's number, which those
        # of `socket.create_server` are not: each small answer would wait 40 ms for an ACK.
        with contextlib.suppress(OSError):
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        values = {
            frames.INITIAL_WINDOW_SIZE: OWN_STREAM_WINDOW,
            frames.MAX_FRAME_SIZE: OWN_FRAME_BYTES_MAX,
            frames.MAX_HEADER_LIST_SIZE: LIST_BYTES_MAX,
            **self.own_settings(),
        }
        grown = OWN_CONNECTION_WINDOW - frames.WINDOW_DEFAULT
        preface = b"" if self._is_server else frames.PREFACE
        transport.write(preface + frames.settings(values) + frames.window_update(0, grown))
        if self._liveness is not None:
            self._watch = PeerWatch(transport, self._write, self._liveness)

    def connection_lost(self, failure: BaseException | None) -> None:
        self.is_lost = True
        if self._watch is not None:
            self._watch.stop()
        reason = "the connection ended" if failure is None else f"the connection ended: {failure}"
        for stream in list(self.streams.values()):
            stream.failed(ErrorCode.CANCEL, reason)
        self.streams.clear()
        self._blocked.clear()
        self._give_room()

    def pause_writing(self) -> None:
        self.is_choked = True

    def resume_writing(self) -> None:
        self.is_choked = False
        if self._is_paused:
            self._schedule_turn()
        self._pump()

    def get_buffer(self, _sizehint: int) -> memoryview:
        if self.is_closing:
            return self._buffer.view[:TURN_BYTES]
        if self._data_left and self._data_stream is not None:
            target = self._data_stream.direct_target(min(self._data_left, DIRECT_BYTES_MAX))
            if target is not None:
                self._direct = True
                return target
        self._direct = False
        rest = self._rest
        if rest:
            self._buffer.view[: len(rest)] = rest
        return self._buffer.view[len(rest) : len(rest) + TURN_BYTES]

    def buffer_updated(self, count: int) -> None:
        if self._watch is not None:
            self._watch.signs += 1
        if self._direct:
            self._direct_came(count)
            is_over = count >= DIRECT_BYTES_MAX
        else:
            self._take_turn(len(self._rest) + count)
            # A loop may read again in the same iteration what filled all that it was offered.
            is_over = count >= TURN_BYTES
        if is_over or (self._rest and self._has_kept_frames) or (self.is_choked and self._is_full):
            self._pause()

    def _direct_came(self, count: int) -> None:
        """Bytes were received into the message that they belong to."""
        if self._ignores:
            return
        assert self._data_stream is not None
        self._data_left -= count
        self._data_stream.filled(count)
        if not self._data_left:
            try:
                self._data_came()
            except ConnectionBroken as failure:
                self.broken(failure)

    @property
    def _ignores(self) -> bool:
        """Whether received bytes are discarded."""
        return self.is_closing and (self.is_broken or not self.streams)

    # Turns.

    def _take_turn(self, end: int) -> None:
        """Handle frames among the first bytes of the buffer, as far as one turn goes; keep the
        rest."""
        if self.is_closing and self._ignores:
            self._rest = b""
            return
        self.turn_left, self._next_turn_after = TURN_COST, 0.0
        try:
            at = self._take_whole(end)
            if at < end and self.turn_left > 0:
                at = self._handle(at, end)
            self._rest = bytes(self._buffer.view[at:end]) if at < end else b""
            if self.idle_frames > 0 or self.resets:
                self._check_budgets()
        except ConnectionBroken as failure:
            self._rest = b""
            self.broken(failure)

    @property
    def _has_kept_frames(self) -> bool:
        """Whether the turn ended before the received frames did."""
        return bool(self._rest) and self.turn_left <= 0

    @property
    def _is_full(self) -> bool:
        """Whether the peer leaves too many answers unread; its frames are not read either."""
        # Not a client: of two sides that wait for one another to read, none would.
        return (
            self.is_choked
            and self._is_server
            and self.transport.get_write_buffer_size() > WRITE_BYTES_MAX
        )

    def _pause(self) -> None:
        """End the turn: read nothing before the next one."""
        if self.is_lost or self.transport.is_closing():
            return
        if not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()
        if not self._is_full:
            self._schedule_turn()

    def _schedule_turn(self) -> None:
        if not self._has_next_turn:
            self._has_next_turn = True
            loop = asyncio.get_running_loop()
            if self._next_turn_after:
                loop.call_later(self._next_turn_after, self._next_turn)
            else:
                loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        """Handle frames that were kept; read again if none are left."""
        self._has_next_turn = False
        # If answers fill the transport, `resume_writing` schedules the turn.
        if self.is_lost or self.transport.is_closing() or self._is_full:
            return
        if self._rest:
            rest = self._rest
            self._buffer.view[: len(rest)] = rest
            self._take_turn(len(rest))
        if self._has_kept_frames or self._is_full:
            self._pause()
        elif not (self.is_lost or self.transport.is_closing()):
            self._is_paused = False
            self.transport.resume_reading()

    def _check_budgets(self) -> None:
        """Raises ConnectionBroken if the peer has sent too many frames without effect, or has
        caused too many resets."""
        now = asyncio.get_running_loop().time()
        idle_frames, self.idle_frames = self.idle_frames, 0
        resets, self.resets = self.resets, 0
        if idle_frames * FRAME_COST + resets * CALL_COST > WASTE_COST_MAX:
            self._next_turn_after = WASTE_PAUSE_SECONDS
        sent_bytes = self.granted_bytes - self._send_window
        allowed, self._counted_bytes = sent_bytes - self._counted_bytes, sent_bytes
        if not self._idle_budget.spend(idle_frames - allowed / SENT_BYTES_PER_IDLE_FRAME, now):
            raise ConnectionBroken(ErrorCode.ENHANCE_YOUR_CALM, "too many frames have no effect")
        if not self._reset_budget.spend(resets, now):
            raise ConnectionBroken(ErrorCode.ENHANCE_YOUR_CALM, "too many streams are reset")

    def eof_received(self) -> bool:
        return False

    # Frames.

    def _handle(self, at: int, end: int) -> int:
        """Handle what has come whole of the buffer's bytes from one place to another; returns where
        the rest begins."""
        raw, view = self._buffer.bytes, self._buffer.view
        is_first = not at
        if self._awaits_preface:
            at = len(frames.PREFACE)
            if raw[: min(end, at)] != frames.PREFACE[:end]:
                raise ConnectionBroken(ErrorCode.PROTOCOL_ERROR, "this is not HTTP/2")
            if end < at:
                return 0
            self._awaits_preface = False
        # The payload of a DATA frame belongs to the turn of its head.
        while not self.is_lost and (self.turn_left > 0 or self._data_left):
            if self._data_left:
                took = min(self._data_left, end - at)
                self._data_left -= took
                piece = view[at : at + took]
                at += took
                # Others than ours send windows before and behind their messages.
                self.comes_alone = is_first and not (at < end and self.is_data(at, end))
                is_first = False
                self._data_piece(piece)
                if self._data_left:
                    break
                self._data_came()
                if self.turn_left <= 0:
                    break
            if end - at < frames.HEAD_BYTES:
                break
            word, flags, stream_id = frames.HEAD.unpack_from(raw, at)
            length, kind = word >> 8, word & 0xFF
            self._check_head(length, kind, flags)
            if kind == frames.DATA and not flags & frames.PADDED:
                at += frames.HEAD_BYTES
                self.turn_left -= MESSAGE_COST
                self._begin_data(flags, stream_id & frames.STREAM_ID_MAX, length)
                if not length:
                    self._data_came()
                continue
            if end - at < frames.HEAD_BYTES + length:
                break
            at += frames.HEAD_BYTES
            payload = bytes(view[at : at + length])
            at += length
            self.turn_left -= FRAME_COST
            handler = self._handlers.get(kind)
            if handler is None:
                self.idle_frames += 1
            else:
                try:
                    handler(flags, stream_id & frames.STREAM_ID_MAX, payload)
                except StreamBroken as failure:
                    self._stream_broken(failure)
        return at

    def _check_head(self, length: int, kind: int, flags: int) -> None:
        if length > OWN_FRAME_BYTES_MAX:
            raise ConnectionBroken(ErrorCode.FRAME_SIZE_ERROR, "a frame is too long")
        if length > CONTROL_BYTES_MAX and (kind != frames.DATA or flags & frames.PADDED):
            raise ConnectionBroken(ErrorCode.ENHANCE_YOUR_CALM, "a frame is very long")
        if self._headers is not None and kind != frames.CONTINUATION:
            raise ConnectionBroken(ErrorCode.PROTOCOL_ERROR, "headers were not continued")
        if self.awaits_settings and kind != frames.SETTINGS:
            raise ConnectionBroken(ErrorCode.PROTOCOL_ERROR, "settings come first")

    def _headers_frame(self, flags: int, stream_id: int, payload: bytes) -> None:
        payload = frames.unpadded(flags, payload)
        if flags & frames.WITH_PRIORITY:
            # What it says is obsolete; a mistake in it must not keep the block from the table.
            payload = payload[5:]
        if stream_id == 0:
            raise ConnectionBroken(ErrorCode.PROTOCOL_ERROR, "headers without a stream")
        if flags & frames.END_HEADERS:
            self._headers_came(stream_id, flags, payload)
        else:
            self._headers = (stream_id, flags, [payload])

    def _continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self._headers is None or self._headers[0] != stream_id:
            raise ConnectionBroken(ErrorCode.PROTOCOL_ERROR, "nothing is continued")
        first_flags, parts = self._headers[1:]
        parts.append(payload)
        if sum(map(len, parts)) > HEADER_BLOCK_BYTES_MAX or len(parts) > CONTINUATIONS_MAX:
            raise ConnectionBroken(ErrorCode.ENHANCE_YOUR_CALM, HEADERS_TOO_LONG)
        if flags & frames.END_HEADERS:
            self._headers = None
            self._headers_came(stream_id, first_flags, b"".join(parts))

    def _headers_came(self, stream_id: int, flags: int, block: bytes) -> None:
        if len(block) > HEADER_BLOCK_BYTES_MAX:
            raise ConnectionBroken(ErrorCode.ENHANCE_YOUR_CALM, HEADERS_TOO_LONG)
        # Always decoded: the table is the whole connection's.
        headers = self._reader.read(block)
        self.turn_left -= HEADER_BYTE_COST * self._reader.decoded_bytes
        ends = bool(flags & frames.END_STREAM)
        stream = self.streams.get(stream_id)
        if stream is not None:
            if stream.has_ended:
                raise ConnectionBroken(ErrorCode.STREAM_CLOSED, "headers behind the end")
            self.more_headers(stream, headers, ends=ends)
            return
        of_peer = bool(stream_id & 1) == self._is_server
        if of_peer and stream_id > self._last_peer_stream and self._is_server:
            self._last_peer_stream = stream_id
            self.turn_left -= CALL_COST
            self.idle_frames -= IDLE_FRAMES_PER_CALL
            self.stream_opened(stream_id, headers, ends=ends)
            return
        self._require_known(stream_id)
        if self._is_server:
            raise ConnectionBroken(ErrorCode.STREAM_CLOSED, f"stream {stream_id} has ended")

    def _rst_stream(self, _flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionBroken(ErrorCode.FRAME_SIZE_ERROR, "a reset has four bytes")
        self._require_known(stream_id)
        self.resets += 1
        stream = self.streams.pop(stream_id, None)
        if stream is None:
            self.reset_late(stream_id)
            return
        self._blocked.pop(stream_id, None)
        (code,) = frames.NUMBER.unpack(payload)
        known = ErrorCode(code) if code in _CODES else ErrorCode.INTERNAL_ERROR
        stream.failed(known, f"the peer ended the stream: {known.name}")
        self.stream_over()

    def reset_late(self, stream_id: int) -> None:
        """The peer has reset a stream that both sides had ended."""

    # Ends.

    def drop_if_over(self, stream: MessageStream) -> None:
        """Forget a stream on which both sides have sent their last frame. A server that has
        answered wants no more of the request (RFC 9113, section 8.1)."""
        if stream.is_closed or not stream.sent_last or stream.pending:
            return
        if self._is_server and not stream.has_ended:
            self.reset(stream, ErrorCode.NO_ERROR)
        elif stream.has_ended:
            self.streams.pop(stream.id, None)
            self._blocked.pop(stream.id, None)
            stream.closed()
            self.stream_over()

    def reset(self, stream: MessageStream, code: ErrorCode) -> None:
        """Give a stream up."""
        if not stream.is_closed:
            self.streams.pop(stream.id, None)
            self._blocked.pop(stream.id, None)
            self._refuse(stream.id, code)
            stream.closed()
            self.stream_over()

    def _stream_broken(self, failure: StreamBroken) -> None:
        self._refuse(failure.stream_id, failure.code)
        stream = self.streams.pop(failure.stream_id, None)
        if stream is not None:
            self._blocked.pop(stream.id, None)
            stream.failed(failure.code, str(failure))
            self.stream_over()

    def broken(self, failure: ConnectionBroken) -> None:
        """End the connection, and say why. What still comes is left unread for a moment: closed
        with bytes that nobody has read, a socket takes back what it was given last."""
        self._write(frames.goaway(self._last_peer_stream, failure.code, str(failure)))
        self.is_broken = True
        for stream in list(self.streams.values()):
            stream.failed(failure.code, str(failure))
        self.streams.clear()
        self._blocked.clear()
        self.close()

    def close(self) -> None:
        """End it; what is written is still sent. A server waits for its peer's end, and reads on
        for a moment: a socket that is closed with bytes that nobody has read takes back what it was
        given last, an answer among it."""
        if self.is_lost or self.is_closing or self.transport is None:
            return
        # An answer may be among what is held: its end can be what ends the connection.
        self.release_writes()
        self.is_closing = True
        for stream in list(self.streams.values()):
            stream.failed(ErrorCode.CANCEL, "the connection is closed")
        self.streams.clear()
        self._blocked.clear()
        if self._is_server and self.transport.can_write_eof() and not self.transport.is_closing():
            # The peer may have gone by itself.
            with contextlib.suppress(OSError):
                self._is_paused = False
                self.transport.resume_reading()
                self.transport.write_eof()
                asyncio.get_running_loop().call_later(CLOSE_SECONDS_MAX, self.transport.close)
                return
        self.transport.close()

    def leave(self, *, at_once: bool = True) -> None:
        """Say that no further streams are taken; it ends with the last one of those that are.

        Args:
            at_once: otherwise it is said twice, half a second apart: streams that the peer has
                opened meanwhile are served.
        """
        if self._is_leaving or self.is_lost:
            return
        if not at_once:
            self._write(frames.goaway(frames.STREAM_ID_MAX, ErrorCode.NO_ERROR))
            asyncio.get_running_loop().call_later(LEAVE_SECONDS, self.leave)
        else:
            self._is_leaving = True
            self._write(frames.goaway(self._last_peer_stream, ErrorCode.NO_ERROR))
            self.stream_over()

    @property
    def is_leaving(self) -> bool:
        return self._is_leaving

    def stream_over(self) -> None:
        """A stream has ended; the last one of a connection that leaves ends it."""
        if self._is_leaving and not self.streams:
            self.close()

    # What the two sides do in their own way.
    # ruff: noqa: ARG002 - arguments are for those who override

    def own_settings(self) -> Mapping[int, int]:
        """Settings beside those of both."""
        return {}

    def stream_opened(self, stream_id: int, headers: tuple[Header, ...], *, ends: bool) -> None:
        """The peer opens a stream."""
        raise ConnectionBroken(ErrorCode.PROTOCOL_ERROR, "streams are opened by clients")

    def more_headers(
        self, stream: MessageStream, headers: tuple[Header, ...], *, ends: bool
    ) -> None:
        """Headers on a stream that is open."""
        raise NotImplementedError


_CODES = frozenset(ErrorCode)
