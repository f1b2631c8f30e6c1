"""Interface of a session: one side of an HTTP/2 connection with gRPC calls, without I/O.

The owner (a connection) passes received bytes to the session, handles the events that the session
returns, and writes the session's output to the socket. A session parses frames and headers, checks
the rules of RFC 9113 and of gRPC over HTTP/2, assembles messages, handles flow control, and counts
the cost that the peer causes. It uses no socket, no event loop and no clock.

Two implementations have this interface: `rockoon_kernel.http2` (compiled, with the h2 crate) and
`rockoon_rpc.fallback` (with the h2 library for Python). `tests/rpc/test_session.py` runs each
case on both.

An event is a tuple: its kind, and the fields that the kind's comment lists. A stream is named by
its number. The session removes a stream after its RESET, FINISHED or ANSWER; method calls for a
removed stream have no effect.
"""

import struct
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Protocol

# Each gRPC message has a prefix of five bytes: a compression flag, and the length.
PREFIX = struct.Struct(">BI")


def framed(message: bytes) -> bytes:
    """Return a message with its gRPC prefix."""
    return PREFIX.pack(0, len(message)) + message


Metadata = tuple[tuple[str, str | bytes], ...]
"""gRPC's custom metadata. Values of names that end with "-bin" are bytes, decoded from base64.
Values of one name keep their order."""

Event = tuple[Any, ...]

# Events of both sides.

# The peer's first SETTINGS frame has arrived: () . The connection can be used.
READY = 0
# One message of a stream: (stream, message: bytes).
MESSAGE = 1
# The peer or the session has reset a stream: (stream, code: int, reason: str). `code` is an error
# code of HTTP/2. A server's session also reports a call that it has refused itself (for example a
# message that is too long) after it has sent the status, so that the handler is cancelled.
RESET = 2
# All that was queued on a stream is in the output, after `send` or `respond` has returned False, or
# after `request` with a message that did not fit: (stream,).
ROOM = 3
# The peer has acknowledged the PING of `ping`: ().
PONG = 4
# The peer has sent GOAWAY: (last_stream, code: int, text: str). Streams above `last_stream` are
# reported by RESET with REFUSED_STREAM after this event.
GOAWAY = 5
# Frames without effect and resets that the peer has caused in this turn, if there are more than an
# honest peer causes with each call: (idle_frames, resets). The owner has budgets for both. A stream
# beyond `streams_max` counts as 20 resets. DATA of a stream that this side has ended before the
# peer did is no idle frame.
WASTE = 6
# The peer has broken the protocol, or `close` was called: (code: int, reason: str). GOAWAY is in
# the output; the owner writes it and closes the connection. No event follows. A server's session
# may also report it with NO_ERROR when the client has sent GOAWAY and no call is left.
BROKEN = 7

# Events of a server's session.

# A call with one request, complete: (stream, route, metadata, timeout: float | None, message).
# `timeout` is in seconds.
CALL = 8
# A call with a stream of requests begins: (stream, route, metadata, timeout).
OPENED = 9
# The peer sends no further requests: (stream,).
ENDED = 10
# The peer has reset a stream that both sides had ended: (stream,). It may not have read the answer.
# Reported for the latest 1,000 calls of a connection.
LATE_RESET = 11
# A call with one request begins, and its request is not complete yet: (stream,). The owner limits
# the time; CALL or RESET follows.
AWAITED = 12

# Events of a client's session.

# A call with one answer is over: (stream, status: int, details: str, trailing: Metadata,
# message: bytes | None).
ANSWER = 13
# A call with a stream of answers is over: (stream, status: int, details: str, trailing: Metadata).
FINISHED = 14


class ErrorCode(IntEnum):
    """Error codes of HTTP/2 (RFC 9113, section 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


Buffer = bytes | bytearray | memoryview

Route = tuple[Any, bool]
"""Result of the routing of a path: an object that the events contain, and whether the method's
requests are a stream."""


class Session(Protocol):
    """Methods that the sessions of servers and clients have in common."""

    # Input.

    def receive(self, data: Buffer) -> list[Event]:
        """Handle received bytes, for at most one turn; keep the rest.

        Args:
            data: received bytes, copied if the session keeps them. Empty: run one more turn on
                the kept bytes.
        """
        ...

    @property
    def is_behind(self) -> bool:
        """True if received bytes are kept for the next turn."""
        ...

    @property
    def is_idle(self) -> bool:
        """True if the session is not behind, and `output` would return nothing."""
        ...

    def hold(self, stream: int) -> None:
        """Send the peer no WINDOW_UPDATE for a stream until `resume`. Other streams of the
        connection are not affected."""
        ...

    def resume(self, stream: int) -> None: ...

    # Output.

    def output(self) -> tuple[Sequence[Buffer], Sequence[Event]]:
        """Return the bytes to write next, and events that no `receive` has returned.

        Returns:
            The bytes in pieces; empty if there are none. At most about a megabyte: call `output`
            again when the transport has room. Long messages are pieces of the objects that were
            sent, not copied. The events: ROOM of streams whose messages went to the output.
        """
        ...

    @property
    def unsent_bytes(self) -> int:
        """Number of bytes to send that `output` has not returned: messages that wait for
        flow-control windows or for the transport, and other frames, for example PING
        acknowledgements."""
        ...

    def send(self, stream: int, message: bytes | list[bytes], framed: bool = False) -> bool:
        """Queue a message for sending.

        Args:
            message: its bytes, or pieces of one message.
            framed: the bytes are whole messages, each with its gRPC prefix of five bytes.

        Returns:
            True if all queued bytes of the stream are in the output. If not, ROOM follows.
        """
        ...

    def reset(self, stream: int, code: int) -> None:
        """Send RST_STREAM. No event follows."""
        ...

    def ping(self) -> None:
        """Send PING; the event PONG follows. While a PING is unacknowledged, the next one is
        delayed."""
        ...

    def close(self, code: int, text: str) -> None:
        """Send GOAWAY with an error; all streams end."""
        ...


class ServerSession(Session, Protocol):
    """HTTP/2 session of a server.

    Constructor arguments:
        route_of: returns the route of a path, or None for an unknown method, whose calls the
            session ends with UNIMPLEMENTED. Asked once for each path that it knows.
        limits: a `Limits`.
        kept: names of the headers that become metadata; None keeps all but HTTP/2's and gRPC's
            own.

    A session ends itself, with trailers only: calls of unknown methods (UNIMPLEMENTED), calls with
    a malformed grpc-timeout, metadata that is not base64, no request, or several requests for a
    method that has one (INTERNAL), compressed messages (UNIMPLEMENTED), messages and headers that
    are too long (RESOURCE_EXHAUSTED; much longer headers are BROKEN), and the message with which
    unfinished messages exceed `unfinished_bytes_max` (RESOURCE_EXHAUSTED). A request
    that is not gRPC's is answered with HTTP status 415. A stream beyond `streams_max` or
    `metadata_bytes_max`, and one that begins after `leave`, is reset with REFUSED_STREAM.
    """

    def respond(
        self,
        stream: int,
        message: bytes | list[bytes],
        trailing: Metadata = (),
        framed: bool = False,
    ) -> bool:
        """Send the only reply of a call and status OK, with headers if they were not sent; return
        as `send` does. The stream ends as soon as all bytes are in the output.

        Raises:
            ValueError: HTTP/2 does not permit a name or a value of the metadata. Nothing is sent.
                So do `begin`, `finish`, `request` and `request_head`.
        """
        ...

    def begin(self, stream: int, metadata: Metadata = ()) -> None:
        """Send the headers of a reply unless they were sent before."""
        ...

    def finish(self, stream: int, status: int, details: str, trailing: Metadata = ()) -> bool:
        """Send the status of a call after its queued messages; return as `send` does. If the
        request is not complete, the session sends RST_STREAM with NO_ERROR."""
        ...

    def leave(self, at_once: bool) -> None:
        """Send GOAWAY: calls that the peer starts later are refused.

        Args:
            at_once: False: announce the end by a GOAWAY with the highest stream number; the owner
                calls `leave(True)` once the peer has had time to read it.
        """
        ...

    @property
    def open_streams(self) -> int:
        """Number of calls that have not ended."""
        ...


class ClientSession(Session, Protocol):
    """HTTP/2 session of a client. Constructor argument: `limits`, a `Limits`.

    A session ends calls itself, by ANSWER or FINISHED, and resets their streams if they are open:
    an answer with an HTTP status other than 200 (gRPC's status for it), one without a status
    (INTERNAL), one whose headers cannot be read (INTERNAL), compressed messages (UNIMPLEMENTED),
    messages that are too long or exceed `unfinished_bytes_max` (RESOURCE_EXHAUSTED), and a stream
    that the peer resets with REFUSED_STREAM after the headers of its answer (UNAVAILABLE). If a
    call is over before its requests, the session resets the stream with NO_ERROR. So RESET with
    REFUSED_STREAM means that the peer has not handled the call.
    """

    def request(
        self,
        head: Any,
        message: bytes | None,
        timeout: float | None = None,
        metadata: Metadata = (),
        one_answer: bool = True,
    ) -> int:
        """Start a call.

        Args:
            head: result of `request_head`; valid for any session of the same implementation.
            message: the only request; None: the caller sends requests with `send` and `end`.
            timeout: seconds, sent as grpc-timeout.
            one_answer: report reply and status as one ANSWER; else as MESSAGE and FINISHED.

        Returns:
            The stream's number, or 0: the peer allows no further stream, the numbers are used up,
            or a side has sent GOAWAY.
        """
        ...

    def end(self, stream: int) -> None:
        """Half-close a stream after the queued requests."""
        ...

    @property
    def streams_max(self) -> int:
        """Limit of open streams that the peer has set; 0 before READY."""
        ...

    @property
    def open_streams(self) -> int: ...


class Implementation(Protocol):
    """Interface of the module that provides both kinds of sessions."""

    ServerSession: Callable[..., ServerSession]
    ClientSession: Callable[..., ClientSession]

    def request_head(self, scheme: str, authority: str, path: str, metadata: Metadata = ()) -> Any:
        """Return the encoded headers that all calls of one method have in common."""
        ...
