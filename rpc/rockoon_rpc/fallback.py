"""HTTP/2 sessions in Python, on the h2 library, used if the compiled kernel is missing (see
`session.py`).

A call needs about ten times the CPU time of the kernel; limits, events and errors are equal.
"""

from collections.abc import Callable, Container
from typing import ClassVar

from h2 import events as received

from rockoon_rpc import session as events
from rockoon_rpc.fallback_messages import (
    INTERNAL,
    OK,
    RESOURCE_EXHAUSTED,
    UNAVAILABLE,
    UNIMPLEMENTED,
    UNKNOWN,
    Headers,
    list_bytes,
    metadata,
    percent_decoded,
    percent_encoded,
    text,
    timeout_seconds,
    timeout_value,
    to_headers,
)
from rockoon_rpc.fallback_session import STREAM_ID_MAX, LibrarySession, SessionStream, remember
from rockoon_rpc.limits import Limits
from rockoon_rpc.session import ErrorCode, Metadata, Route

_GRPC = b"application/grpc"
_ANSWER_HEADERS = [(b":status", b"200"), (b"content-type", _GRPC)]
_STATUS_MAX = 16
# Resets that a stream beyond `streams_max` counts as; see `session.WASTE`.
_REFUSED_RESETS = 20
# A status of HTTP as a status of gRPC (gRPC's http-grpc-status-mapping.md).
_HTTP_STATUSES = {
    b"400": INTERNAL,
    b"401": 16,
    b"403": 7,
    b"404": UNIMPLEMENTED,
    b"429": UNAVAILABLE,
    b"502": UNAVAILABLE,
    b"503": UNAVAILABLE,
    b"504": UNAVAILABLE,
}


def request_head(scheme: str, authority: str, path: str, metadata: Metadata = ()) -> Headers:
    """Return the headers that all calls of one method have in common.

    Raises:
        ValueError: HTTP/2 does not permit a name or a value of the metadata.
    """
    return [
        (b":method", b"POST"),
        (b":scheme", scheme.encode()),
        (b":path", path.encode()),
        (b":authority", authority.encode()),
        (b"te", b"trailers"),
        (b"content-type", _GRPC),
        *to_headers(metadata),
    ]


def _is_grpc(content_type: bytes) -> bool:
    return content_type.startswith(_GRPC) and content_type[len(_GRPC) :][:1] in (b"", b"+", b";")


def _status_trailers(status: int, details: str, trailing: Metadata) -> Headers:
    trailers = [(b"grpc-status", b"%d" % status)]
    if details:
        trailers.append((b"grpc-message", percent_encoded(details)))
    return trailers + to_headers(trailing)


class _CallRefused(Exception):
    """Raised if the session itself answers a call with an error.

    Attributes:
        status: gRPC status code; None if the request is not a gRPC request.
    """

    def __init__(self, status: int | None, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class FallbackServerSession(LibrarySession):
    """HTTP/2 session of a server; see `session.ServerSession`."""

    event_methods: ClassVar[dict[type, str]] = {
        **LibrarySession.event_methods,
        received.RequestReceived: "_request",
        received.TrailersReceived: "_request_trailers",
        received.StreamEnded: "_request_ended",
    }

    def __init__(
        self,
        route_of: Callable[[str], Route | None],
        limits: Limits,
        kept: Container[str] | None = None,
    ) -> None:
        super().__init__(limits, is_client=False)
        self._route_of = route_of
        self._routes: dict[bytes, Route] = {}
        self._kept_headers = kept
        self._is_leaving = False
        # Calls with one request that began in this turn.
        self._new_calls: dict[int, SessionStream] = {}

    # Input.

    def _request(self, event: received.RequestReceived) -> None:
        stream_id = event.stream_id
        self._last_stream = stream_id
        self._calls += 1
        is_full = len(self._streams) >= self._limits.streams_max
        if self._is_leaving or is_full:
            self._resets += _REFUSED_RESETS - 1 if is_full else 0
            self._refuse_stream(stream_id, ErrorCode.REFUSED_STREAM, "")
        elif self._check_headers(event, is_trailer=False):
            self._refuse_stream(stream_id, ErrorCode.PROTOCOL_ERROR, "")
        else:
            try:
                stream = self._new_stream(stream_id, event.headers)
            except _CallRefused as refusal:
                self._refuse(stream_id, event.stream_ended is not None, refusal)
                return
            held = sum(each.metadata_bytes for each in self._streams.values())
            if held + stream.metadata_bytes > self._limits.metadata_bytes_max:
                self._refuse_stream(stream_id, ErrorCode.REFUSED_STREAM, "")
                return
            self._streams[stream_id] = stream
            if stream.is_one:
                self._new_calls[stream_id] = stream
            else:
                opened = (stream_id, stream.route, stream.metadata, stream.timeout)
                self._events.append((events.OPENED, *opened))

    def _new_stream(self, stream_id: int, headers: Headers) -> SessionStream:
        """Create the stream of a new call from its headers. Raises _CallRefused."""
        found = dict(headers)
        if found[b":method"] != b"POST" or not _is_grpc(found.get(b"content-type", b"")):
            raise _CallRefused(None, "the request is not gRPC's")
        limits = self._limits
        if self._decoder.list_bytes > limits.header_list_bytes_max:
            reason = f"the headers are longer than {limits.header_list_bytes_max} bytes"
            raise _CallRefused(RESOURCE_EXHAUSTED, reason)
        path = found.get(b":path", b"")
        route = self._routes.get(path)
        if route is None:
            route = self._route_of(text(path))
            if route is None:
                raise _CallRefused(UNIMPLEMENTED, f"unknown method {text(path)}")
            self._routes[path] = route
        stream = SessionStream(stream_id, not route[1], limits.message_bytes_max)
        stream.route = route[0]
        timeout = found.get(b"grpc-timeout")
        if timeout is not None:
            stream.timeout = timeout_seconds(timeout)
            if stream.timeout is None:
                raise _CallRefused(INTERNAL, f"grpc-timeout is malformed: {text(timeout)}")
        try:
            stream.metadata = metadata(headers, self._kept_headers)
        except ValueError as failure:
            raise _CallRefused(INTERNAL, str(failure)) from failure
        stream.metadata_bytes = list_bytes(stream.metadata)
        return stream

    def _refuse(self, stream_id: int, has_ended: bool, refusal: _CallRefused) -> None:
        """End a call with an error status; report RESET if the application knows the call."""
        stream = self._streams.get(stream_id)
        if stream is None:
            stream = SessionStream(stream_id, True, 0)
            stream.has_ended = has_ended
        if refusal.status is None:
            headers = [(b":status", b"415")]
        else:
            headers = [] if stream.has_begun else list(_ANSWER_HEADERS)
            headers += _status_trailers(refusal.status, str(refusal), ())
        self._library.send_headers(stream_id, headers, end_stream=True)
        if not stream.has_ended:
            self._resets += 1
        is_known = stream_id in self._streams and stream.id not in self._new_calls
        self._sent_last(stream)
        if is_known:
            self._events.append((events.RESET, stream_id, int(ErrorCode.NO_ERROR), str(refusal)))

    def _refuse_messages(self, stream: SessionStream, status: int, reason: str) -> None:
        self._refuse(stream.id, stream.has_ended, _CallRefused(status, reason))

    def _request_trailers(self, event: received.TrailersReceived) -> None:
        reason = self._check_headers(event, is_trailer=True)
        if reason:
            self._refuse_stream(event.stream_id or 0, ErrorCode.PROTOCOL_ERROR, reason)

    def _request_ended(self, event: received.StreamEnded) -> None:
        stream = self._streams.get(event.stream_id or 0)
        if stream is None:
            return
        stream.has_ended = True
        if stream.reader.is_within_message:
            self._refuse_messages(stream, INTERNAL, "the requests end within a message")
        elif not stream.is_one:
            self._events.append((events.ENDED, stream.id))
        elif stream.message is None:
            self._refuse_messages(stream, INTERNAL, "the call has no request")
        else:
            call = (stream.id, stream.route, stream.metadata, stream.timeout, stream.message)
            stream.message = None
            self._count_unfinished(stream)
            self._events.append((events.CALL, *call))
            if stream.id not in self._new_calls:
                self._completed += 1

    def _end_turn(self) -> None:
        for stream in self._new_calls.values():
            if not stream.has_ended and stream.id in self._streams:
                self._events.append((events.AWAITED, stream.id))
        self._new_calls.clear()
        super()._end_turn()

    def _reset_late(self, stream_id: int) -> None:
        self._events.append((events.LATE_RESET, stream_id))

    # Output.

    def respond(
        self,
        stream: int,
        message: bytes | list[bytes],
        trailing: Metadata = (),
        framed: bool = False,
    ) -> bool:
        found = self._streams.get(stream)
        if found is None or found.ending is not None:
            return True
        trailers = _status_trailers(OK, "", trailing)
        self._begin(found, ())
        self._queue(found, message, framed)
        found.ending = trailers
        return self._flush(found)

    def send(self, stream: int, message: bytes | list[bytes], framed: bool = False) -> bool:
        self.begin(stream)
        return super().send(stream, message, framed)

    def begin(self, stream: int, metadata: Metadata = ()) -> None:
        found = self._streams.get(stream)
        if found is not None and found.ending is None:
            self._begin(found, metadata)

    def _begin(self, stream: SessionStream, metadata: Metadata) -> None:
        if not stream.has_begun:
            self._library.send_headers(stream.id, _ANSWER_HEADERS + to_headers(metadata))
            stream.has_begun = True

    def finish(self, stream: int, status: int, details: str, trailing: Metadata = ()) -> bool:
        found = self._streams.get(stream)
        if found is None or found.ending is not None:
            return True
        trailers = _status_trailers(status, details, trailing)
        found.ending = trailers if found.has_begun else _ANSWER_HEADERS + trailers
        return self._flush(found)

    def _sent_last(self, stream: SessionStream) -> None:
        super()._sent_last(stream)
        if stream.has_ended:
            remember(self._ended, stream.id)
        else:
            # The rest of the request is not needed (RFC 9113, section 8.1).
            self._reset_stream(stream.id, ErrorCode.NO_ERROR)
        self._forget(stream)

    def leave(self, at_once: bool) -> None:
        if self._is_over or self._is_leaving:
            return
        self._is_leaving = at_once
        self._write_goaway(self._last_stream if at_once else STREAM_ID_MAX, ErrorCode.NO_ERROR, "")


class FallbackClientSession(LibrarySession):
    """HTTP/2 session of a client; see `session.ClientSession`."""

    event_methods: ClassVar[dict[type, str]] = {
        **LibrarySession.event_methods,
        received.ResponseReceived: "_response",
        received.TrailersReceived: "_response_trailers",
        received.StreamEnded: "_response_ended",
    }

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits, is_client=True)
        self._is_left = False

    # Calls.

    def request(
        self,
        head: Headers,
        message: bytes | None,
        timeout: float | None = None,
        metadata: Metadata = (),
        one_answer: bool = True,
    ) -> int:
        if len(self._streams) >= self.streams_max or self._last_stream + 2 > STREAM_ID_MAX:
            return 0
        headers = head
        if timeout is not None:
            headers = [*headers, (b"grpc-timeout", timeout_value(timeout))]
        if metadata:
            headers = headers + to_headers(metadata)
        stream_id = self._library.get_next_available_stream_id()
        self._library.send_headers(stream_id, headers)
        self._last_stream = stream_id
        stream = SessionStream(stream_id, one_answer, self._limits.message_bytes_max)
        self._streams[stream_id] = stream
        if message is not None:
            stream.ending = []
            self._queue(stream, message, framed=False)
            self._flush(stream)
            stream.wants_room = False
        return stream_id

    def end(self, stream: int) -> None:
        found = self._streams.get(stream)
        if found is not None and found.ending is None:
            found.ending = []
            if not found.is_waiting:
                self._flush(found)

    @property
    def streams_max(self) -> int:
        if not self._is_ready or self._is_over or self._is_left:
            return 0
        return min(self._library.remote_settings.max_concurrent_streams, STREAM_ID_MAX)

    # Input.

    def _stream_reset(self, event: received.StreamReset) -> None:
        stream = self._streams.get(event.stream_id or 0)
        code = event.error_code
        if stream is not None and stream.has_begun and code == ErrorCode.REFUSED_STREAM:
            self._finish(stream, UNAVAILABLE, "the server has refused the call while it answered")
        else:
            super()._stream_reset(event)

    def _left(self, last_stream: int) -> None:
        self._is_left = True
        refused = [stream for number, stream in self._streams.items() if number > last_stream]
        for stream in refused:
            self._forget(stream)
            reason = "the server has not handled the call: it accepts no further calls"
            code = int(ErrorCode.REFUSED_STREAM)
            self._events.append((events.RESET, stream.id, code, reason))

    def _response(self, event: received.ResponseReceived) -> None:
        stream = self._streams.get(event.stream_id or 0)
        if stream is None:
            return
        reason = self._check_headers(event, is_trailer=False)
        if reason:
            self._refuse_stream(stream.id, ErrorCode.PROTOCOL_ERROR, reason)
            return
        stream.has_begun = True
        stream.has_ended = event.stream_ended is not None
        found = dict(event.headers)
        status = found[b":status"]
        if status != b"200":
            reason = f"the server answers with HTTP status {text(status)}"
            self._finish(stream, _HTTP_STATUSES.get(status, UNKNOWN), reason)
        elif self._decoder.list_bytes > self._limits.header_list_bytes_max:
            self._finish(stream, RESOURCE_EXHAUSTED, "the answer's headers are too long")
        elif not _is_grpc(content_type := found.get(b"content-type", b"")):
            reason = f"the answer has the content type {text(content_type)!r}, not gRPC's"
            self._finish(stream, UNKNOWN, reason)
        elif stream.has_ended:
            self._end_by(stream, event.headers)

    def _response_trailers(self, event: received.TrailersReceived) -> None:
        stream = self._streams.get(event.stream_id or 0)
        if stream is None:
            return
        reason = self._check_headers(event, is_trailer=True)
        if reason:
            self._refuse_stream(stream.id, ErrorCode.PROTOCOL_ERROR, reason)
        elif self._decoder.list_bytes > self._limits.header_list_bytes_max:
            self._finish(stream, RESOURCE_EXHAUSTED, "the answer's trailers are too long")
        else:
            self._end_by(stream, event.headers)

    def _end_by(self, stream: SessionStream, headers: Headers) -> None:
        """End a call with the status in the headers that the server sent."""
        stream.has_ended = True
        found = dict(headers)
        number = found.get(b"grpc-status")
        if number is None:
            self._finish(stream, INTERNAL, "the answer has no grpc-status")
            return
        status = int(number) if number.isdigit() and len(number) < 4 else UNKNOWN
        if status > _STATUS_MAX:
            status = UNKNOWN
        try:
            trailing = metadata([pair for pair in headers if pair[0] != b":status"])
        except ValueError as failure:
            self._finish(stream, INTERNAL, str(failure))
            return
        details = percent_decoded(found.get(b"grpc-message", b""))
        self._finish(stream, status, details, trailing)

    def _response_ended(self, event: received.StreamEnded) -> None:
        stream = self._streams.get(event.stream_id or 0)
        if stream is not None:
            stream.has_ended = True
            self._finish(stream, INTERNAL, "the answer has no trailers")

    def _refuse_messages(self, stream: SessionStream, status: int, reason: str) -> None:
        self._finish(stream, status, reason)

    def _finish(
        self, stream: SessionStream, status: int, details: str, trailing: Metadata = ()
    ) -> None:
        """Report the end of a call; send RST_STREAM if one side has not ended the stream."""
        if status == OK and stream.reader.is_within_message:
            status, details = INTERNAL, "the answer ends within a message"
        elif status == OK and stream.is_one and stream.message is None:
            status, details = INTERNAL, "the server sent no answer"
        self._forget(stream)
        code = ErrorCode.NO_ERROR if stream.has_ended else ErrorCode.CANCEL
        self._reset_stream(stream.id, code)
        if stream.is_one:
            message = stream.message if status == OK else None
            self._events.append((events.ANSWER, stream.id, status, details, trailing, message))
        else:
            self._events.append((events.FINISHED, stream.id, status, details, trailing))


ServerSession = FallbackServerSession
ClientSession = FallbackClientSession
