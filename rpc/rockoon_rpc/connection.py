"""One HTTP/2 connection as an asyncio protocol: passes bytes between a transport and a session.

Received bytes go into one buffer that all connections of a loop share, so that an idle connection
costs no buffer; the session copies the bytes that it keeps.

Invariants
- A turn handles a limited amount of input. Its events are handled before further bytes are read;
  the output of their handlers is sent in one write at the end of the turn.
- A connection that has more input than one turn waits for its next turn (`turns.py`).
- A server stops reading from a client that does not read its replies.
- Only this class closes the transport, so the socket has one owner.
"""

# ruff: noqa: ARG002 - EndedSession has the arguments of a session

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from rockoon_rpc import session as events
from rockoon_rpc.limits import Limits
from rockoon_rpc.liveness import Liveness, PeerWatch
from rockoon_rpc.session import Buffer, ErrorCode, Event, Metadata, Session
from rockoon_rpc.stream import MessageStream
from rockoon_rpc.turns import Line


class EndedSession:
    """Session of a closed connection: it has no events, and discards everything that is sent.

    `connection_lost` replaces the session of a connection by it. Request handlers may hold a
    reference to the connection for a long time; the memory of the real session is freed before.
    """

    is_behind = False
    is_idle = True
    unsent_bytes = 0
    open_streams = 0
    streams_max = 0

    def receive(self, data: Buffer) -> list[Event]:
        return []

    def hold(self, stream: int) -> None: ...

    def resume(self, stream: int) -> None: ...

    def output(self) -> tuple[Sequence[Buffer], Sequence[Event]]:
        return (), ()

    def send(self, stream: int, message: bytes | list[bytes], framed: bool = False) -> bool:
        return True

    def reset(self, stream: int, code: int) -> None: ...

    def ping(self) -> None: ...

    def close(self, code: int, text: str) -> None: ...

    def respond(
        self,
        stream: int,
        message: bytes | list[bytes],
        trailing: Metadata = (),
        framed: bool = False,
    ) -> bool:
        return True

    def begin(self, stream: int, metadata: Metadata = ()) -> None: ...

    def finish(self, stream: int, status: int, details: str, trailing: Metadata = ()) -> bool:
        return True

    def leave(self, at_once: bool) -> None: ...

    def request(
        self,
        head: Any,
        message: bytes | None,
        timeout: float | None = None,
        metadata: Metadata = (),
        one_answer: bool = True,
    ) -> int:
        return 0

    def end(self, stream: int) -> None: ...


ENDED = EndedSession()

# Bytes in the transport's write buffer above which senders wait.
WRITE_HIGH_BYTES = 1 << 20
# If the output of a session is one piece of at most this many bytes, the session has nothing more
# to send.
WHOLE_OUTPUT_BYTES_MAX = 64 << 10
# Number of fields of the events CALL and ANSWER.
CALL_FIELDS = 6
# Time limit for a peer to end its side of a connection.
CLOSE_SECONDS_MAX = 2.0


class SessionConnection(asyncio.BufferedProtocol):
    """Base of a server's connection and of a client's connection; used by one event loop.

    Args:
        session: parses and encodes HTTP/2.
        limits: limits of the connection.
        liveness: time limits of a silent peer; None: no PING is sent.
        line: queue in which connections of this kind wait for their turns.

    Attributes:
        address: address of the peer; "" before it is known.
        loop: event loop of the connection.
        is_choked: the transport's write buffer is full.
        is_lost: the connection has ended.
        is_closing: this side closes the connection and writes nothing further.
        is_leaving: the connection accepts no further calls and closes after its last call.
        arrives_alone: the event that is being handled is the only event of the current turn.
        streams: open streams by number.
    """

    # Names of the methods that handle events, by kind; a subclass adds those of its side.
    event_methods: ClassVar[dict[int, str]] = {
        events.READY: "_ready",
        events.MESSAGE: "_message",
        events.RESET: "_reset",
        events.ROOM: "_room",
        events.PONG: "_pong",
        events.GOAWAY: "_goaway",
        events.WASTE: "_waste",
        events.BROKEN: "_broken",
    }
    # The methods of a class, made once: no object per connection.
    _handlers: ClassVar[dict[int, Callable[..., None]]] = {}
    # Receive buffers of each event loop, by their length in bytes.
    _buffers: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, memoryview]]] = (
        WeakKeyDictionary()
    )
    # True: a turn handles one read. If a read fills the buffer, asyncio may read again in the same
    # iteration; a server ends the turn before that, so that no client gets more than its share. A
    # client trusts the server that it has chosen, and reads on.
    reads_once: ClassVar[bool] = True

    __slots__ = (
        "__weakref__", "_before_flush", "_buffer", "_deferred", "_has_flush", "_is_in_line",
        "_is_in_turn", "_is_paused", "_line", "_liveness", "_pause_seconds", "_wanting", "_watch",
        "_writes", "_writes_before", "address", "arrives_alone", "is_choked", "is_closing",
        "is_leaving", "is_lost", "limits", "loop", "session", "streams", "transport",
    )  # fmt: skip

    def __init_subclass__(cls) -> None:
        cls._handlers = {kind: getattr(cls, name) for kind, name in cls.event_methods.items()}

    def __init__(
        self,
        session: Session,
        limits: Limits,
        liveness: Liveness | None,
        line: Line,
    ) -> None:
        self.session = session
        self.limits = limits
        self.address = ""
        self.transport: Any = None
        self.is_choked = self.is_lost = self.is_closing = self.is_leaving = False
        self.arrives_alone = False
        self.streams: dict[int, Any] = {}
        self._liveness = liveness
        self._watch: PeerWatch | None = None
        self._line = line
        self.loop = asyncio.get_running_loop()
        buffers = self._buffers.setdefault(self.loop, {})
        buffer = buffers.get(limits.turn_bytes)
        if buffer is None:
            buffer = buffers[limits.turn_bytes] = memoryview(bytearray(limits.turn_bytes))
        self._buffer = buffer
        self._is_in_turn = False
        # Reading is paused; the connection waits in the line or for a timer.
        self._is_paused = self._is_in_line = False
        self._has_flush = False
        # Calls of `wrote` outside of turns: their number since the last turn, and their number in
        # the latest interval between two turns that had such a call.
        self._writes = self._writes_before = 0
        # Seconds until the next turn, if the peer has sent many frames without effect.
        self._pause_seconds = 0.0
        # Called before the next flush.
        self._before_flush: list[Callable[[], None]] | None = None
        # Streams with senders that wait for room.
        self._wanting: list[MessageStream] | None = None
        # Input that waits for the next turn, because the connections of this kind have used up the
        # input of this iteration (`turns.ITERATION_COST_MAX`).
        self._deferred = b""

    @property
    def signs_of_life(self) -> int:
        """Number of reads that returned bytes; 0 if no liveness check runs on the connection."""
        return 0 if self._watch is None else self._watch.signs

    # Callbacks of the transport.

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        # asyncio does this only for sockets that were made with a protocol's number, unlike those
        # of `socket.create_server`. Without it each small answer waits 40 ms for an ACK.
        with contextlib.suppress(OSError):
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        if self._liveness is not None:
            self._watch = PeerWatch(transport, self.ping, self._liveness)
        self.flush()

    def connection_lost(self, failure: BaseException | None) -> None:
        self.is_lost = True
        if self._watch is not None:
            self._watch.stop()
        reason = "the connection ended" if failure is None else f"the connection ended: {failure}"
        self._fail_streams(ErrorCode.CANCEL, reason)
        # Calls may refer to the connection for a long time. The memory of the session and of the
        # TLS connection, up to a megabyte, is released now: nothing here may be in a reference
        # cycle, which only the garbage collector would free.
        self.session = ENDED
        self.transport = None
        self._deferred = b""
        self._before_flush = self._wanting = None

    def pause_writing(self) -> None:
        self.is_choked = True

    def resume_writing(self) -> None:
        if self._watch is not None:
            # The peer reads, also if nothing is read from it.
            self._watch.signs += 1
        self.is_choked = False
        self.flush()
        if self._is_paused:
            self._join_line()
        wanting, self._wanting = self._wanting, None
        for stream in wanting or ():
            if self.is_choked and not stream.is_closed:
                self.await_room(stream)
            elif stream.is_closed or not stream.is_pending:
                # ROOM notifies streams that are pending.
                stream.notify_room()

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, count: int) -> None:
        if self._watch is not None:
            self._watch.signs += 1
        if self.is_closing:
            return
        line = self._line
        if self._deferred or line.cost >= line.cost_max:
            self._deferred += self._buffer[:count]
            self._pause()
            return
        # The condition is `_must_wait`, without its call.
        if (
            self._take_turn(self._buffer[:count])
            or self._pause_seconds
            or (self.is_choked and self._is_full)
            or (count == len(self._buffer) and self.reads_once)
        ):
            self._pause()

    def eof_received(self) -> bool:
        return False

    # Turns.

    def _take_turn(self, data: memoryview | bytes) -> bool:
        """Handle input; return whether the session keeps bytes for the next turn."""
        if self._writes:
            self._writes_before, self._writes = self._writes, 0
        self._is_in_turn = True
        try:
            received = self.session.receive(data)
            line, count = self._line, len(received)
            line.cost += 1 + (len(data) >> line.unit_bits) + count
            if line.cost >= line.notice_at:
                line.count_again()
            self.arrives_alone = count == 1
            handlers, streams = self._handlers, self.streams
            for event in received:
                # Most events of a busy stream; without a call for each.
                if event[0] == events.MESSAGE:
                    stream = streams.get(event[1])
                    if stream is not None:
                        stream.received(event[2])
                elif len(event) == CALL_FIELDS:
                    # A call or an answer: without the cost of a call with a number of arguments
                    # that varies.
                    _, call, first, second, third, message = event
                    handlers[event[0]](self, call, first, second, third, message)
                else:
                    handlers[event[0]](self, *event[1:])
        finally:
            self._is_in_turn = False
        # A client's turn mostly causes no output: this costs less than a flush that finds nothing.
        is_behind = False
        if self._before_flush or not self.session.is_idle:
            self.flush()
            is_behind = self.session.is_behind
        if self.is_leaving:
            self.stream_over()
        return is_behind

    @property
    def _must_wait(self) -> bool:
        """True if the connection must not read before its next turn."""
        return (
            self.session.is_behind or self._pause_seconds > 0 or (self.is_choked and self._is_full)
        )

    @property
    def _is_full(self) -> bool:
        """True if the client has too many unread replies; the server then stops reading from it.
        Always False for a client connection: if both sides stopped reading, both would block."""
        return False

    def _pause(self) -> None:
        """End the turn: stop reading until the next turn."""
        if self.is_lost or self.is_closing or self.transport.is_closing():
            return
        if not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()
        if not (self.is_choked and self._is_full):
            self._join_line()

    def _join_line(self) -> None:
        if self._is_in_line:
            return
        self._is_in_line = True
        pause, self._pause_seconds = self._pause_seconds, 0.0
        if pause:
            self.loop.call_later(pause, self._line.join, self)
        else:
            self._line.join(self)

    def next_turn(self) -> None:
        """Run the next turn: handle kept bytes, or resume reading; see `Turns`."""
        self._is_in_line = False
        # If answers fill the transport, `resume_writing` joins the line again.
        if self.is_lost or self.is_closing or self.transport.is_closing():
            return
        if self.is_choked and self._is_full:
            return
        deferred, self._deferred = self._deferred, b""
        if deferred or self.session.is_behind:
            self._take_turn(deferred)
            if self.is_closing:
                return
        if self._must_wait:
            self._pause()
        else:
            self._is_paused = False
            self.transport.resume_reading()

    # Output.

    def wrote(self) -> None:
        """Schedule the write of bytes that were queued in the session. During a turn they are
        written at its end. Otherwise they are written in the next iteration of the event loop,
        together with everything queued until then; or immediately, if `_writes_before` is 1 and
        this is the first call since the last turn."""
        if self._is_in_turn:
            return
        self._writes += 1
        if self._has_flush or self.is_lost:
            return
        if self._writes == 1 == self._writes_before:
            # The peer gets one message after another: to wait for more would cost an iteration.
            self.flush()
        else:
            self._has_flush = True
            self.loop.call_soon(self._flush_soon)

    def before_flush(self, callback: Callable[[], None]) -> None:
        """Call `callback` once before the next write of the session's output; messages that it
        queues are part of this write."""
        if self._before_flush is None:
            self._before_flush = []
        self._before_flush.append(callback)
        # Other messages of this iteration leave in the same write.
        self._writes += 1
        self.wrote()

    def _flush_soon(self) -> None:
        self._has_flush = False
        self.flush()

    def flush(self) -> None:
        """Write as much of the session's output as the transport accepts."""
        if self._before_flush:
            # Messages that the callbacks queue need no other flush.
            had_flush, self._has_flush = self._has_flush, True
            try:
                while self._before_flush:
                    self._before_flush.pop()()
            finally:
                self._has_flush = had_flush
        while not (self.is_choked or self.is_lost or self.is_closing):
            # Output makes room in the session for messages that waited.
            pieces, made_room = self.session.output()
            count = len(pieces)
            if count == 1:
                self.transport.write(pieces[0])
            elif count:
                self.transport.writelines(pieces)
            if made_room:
                self.arrives_alone = False
                for event in made_room:
                    self._handlers[event[0]](self, *event[1:])
            elif not count or (count == 1 and len(pieces[0]) <= WHOLE_OUTPUT_BYTES_MAX):
                return

    def ping(self) -> None:
        self.session.ping()
        self.wrote()

    def await_room(self, stream: MessageStream) -> None:
        """Wake the sender of a stream once the transport accepts more bytes."""
        if self.is_choked:
            if self._wanting is None:
                self._wanting = []
            self._wanting.append(stream)

    # Ends.

    def forget(self, stream: MessageStream) -> None:
        """Remove a stream that has ended."""
        self.streams.pop(stream.id, None)
        stream.closed()
        self.stream_over()

    def stream_over(self) -> None:
        """Called when a stream has ended; subclasses override it."""

    def _fail_streams(self, code: int, reason: str) -> None:
        streams = list(self.streams.values())
        self.streams.clear()
        for stream in streams:
            stream.failed(code, reason)

    def close(
        self, code: int = ErrorCode.NO_ERROR, reason: str = "the connection is closed"
    ) -> None:
        """Close the connection after the queued output is sent; its streams fail.

        Args:
            code: error code of the GOAWAY frame; for NO_ERROR no GOAWAY is sent.
        """
        if self.is_lost or self.is_closing or self.transport is None:
            return
        if code != ErrorCode.NO_ERROR:
            self.session.close(code, reason)
        self.flush()
        if self.is_closing:
            # By BROKEN, which the flush has handled.
            return
        self.is_closing = True
        self._fail_streams(code or ErrorCode.CANCEL, reason)
        self._close_transport()

    def _close_transport(self) -> None:
        self.transport.close()

    # Events of both sides.

    def _ready(self) -> None:
        """Called when the peer's SETTINGS have arrived; subclasses override it."""

    def _message(self, stream_id: int, message: bytes) -> None:
        stream = self.streams.get(stream_id)
        if stream is not None:
            stream.received(message)

    def _reset(self, stream_id: int, code: int, reason: str) -> None:
        stream = self.streams.pop(stream_id, None)
        if stream is not None:
            stream.failed(code, reason)
        self.stream_over()

    def _room(self, stream_id: int) -> None:
        stream = self.streams.get(stream_id)
        if stream is not None:
            stream.sent_all()

    def _pong(self) -> None:
        """Called when the peer has acknowledged a PING; subclasses override it."""

    def _goaway(self, last_stream: int, code: int, text: str) -> None:
        """Called when the peer accepts no further streams; subclasses override it."""

    def _waste(self, idle_frames: int, resets: int) -> None:
        """Called when the peer has sent frames without effect, or caused resets; subclasses
        override it."""

    def _broken(self, _code: int, reason: str) -> None:
        """Close the connection after a protocol error of the peer. The session's output has the
        GOAWAY."""
        self.close(ErrorCode.NO_ERROR, reason)
