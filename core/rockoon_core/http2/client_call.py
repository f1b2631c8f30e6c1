"""A call as its caller has it: with the methods of grpc.aio's call objects that are used here.

A call is sent when it is made, if its channel is connected; else as soon as it is. Whoever awaits
one, or reads it, is told of failures by `grpc.aio.AioRpcError`, as by gRPC's own.
"""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from rockoon_core.http2.frames import ErrorCode
from rockoon_core.http2.headers import Header, Metadata, metadata, percent_decoded
from rockoon_core.http2.messages import MessageStream

if TYPE_CHECKING:
    from rockoon_core.http2.channel import ClientConnection, Http2Channel

# What an error of HTTP/2 means to a call (gRPC over HTTP2, "Errors").
_OF_RESET = {
    ErrorCode.REFUSED_STREAM: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.CANCEL: grpc.StatusCode.CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.INADEQUATE_SECURITY: grpc.StatusCode.PERMISSION_DENIED,
}
_OF_HTTP = {
    "401": grpc.StatusCode.UNAUTHENTICATED,
    "403": grpc.StatusCode.PERMISSION_DENIED,
    "404": grpc.StatusCode.UNIMPLEMENTED,
    "429": grpc.StatusCode.UNAVAILABLE,
    "502": grpc.StatusCode.UNAVAILABLE,
    "503": grpc.StatusCode.UNAVAILABLE,
    "504": grpc.StatusCode.UNAVAILABLE,
}
_BY_NUMBER = {code.value[0]: code for code in grpc.StatusCode}


def failure(code: grpc.StatusCode, details: str, trailing: Metadata = ()) -> aio.AioRpcError:
    """What callers are told."""
    return aio.AioRpcError(code, aio.Metadata(), aio.Metadata(*trailing), details, details)


class ClientStream(MessageStream):
    """A call's stream on its connection."""

    __slots__ = ("call", "has_headers")

    # A pull brings two megabytes; a client asks for what it gets.
    first_bytes_max: ClassVar[int] = 5 << 19

    def __init__(self, connection: "ClientConnection", stream_id: int, call: "ClientCall") -> None:
        super().__init__(connection, stream_id, call.channel.message_bytes_max)
        # None when the stream is over: each would keep the other for the garbage collector.
        self.call: ClientCall | None = call
        self.has_headers = False

    def headers_came(self, headers: tuple[Header, ...], *, ends: bool) -> None:
        """Headers or trailers of the answer."""
        call = self.call
        if call is None:
            return
        found = dict(headers)
        if not self.has_headers:
            self.has_headers = True
            status = found.get(":status", "")
            if status != "200":
                code = _OF_HTTP.get(status, grpc.StatusCode.UNKNOWN)
                call.end(code, f"the server answers with HTTP status {status}")
                return
        if not ends:
            return
        number = found.get("grpc-status", "")
        code = _BY_NUMBER.get(int(number) if number.isdecimal() else -1, grpc.StatusCode.UNKNOWN)
        details = percent_decoded(found.get("grpc-message", ""))
        try:
            trailing = metadata(headers)
        except ValueError as broken:
            code, details, trailing = grpc.StatusCode.INTERNAL, str(broken), ()
        call.end(code, details, trailing)

    def failed(self, code: ErrorCode, reason: str) -> None:
        call = self.call
        is_refused = code is ErrorCode.REFUSED_STREAM and not self.has_headers
        if call is not None and not (is_refused and call.refused()):
            is_lost = self.connection.is_lost or self.connection.is_closing
            status = grpc.StatusCode.UNAVAILABLE if is_lost else _OF_RESET.get(code)
            call.end(status or grpc.StatusCode.INTERNAL, reason)
        super().failed(code, reason)

    def closed(self) -> None:
        super().closed()
        self.call = None


class ClientCall:
    """One call of any kind.

    Args:
        channel: carries it.
        head: the block of its headers.
        request: a message, or what yields those of a stream; None when they are written.
        sends_stream: whether requests are a stream.
        serialize, parse: messages to bytes and back; None leaves them bytes.
        timeout: seconds; None for none.
        waits: for a connection, however often that fails to come about.
    """

    def __init__(
        self,
        channel: "Http2Channel",
        head: bytes,
        request: Any,
        serialize: Callable[[Any], bytes] | None,
        parse: Callable[[bytes], Any] | None,
        *,
        sends_stream: bool,
        timeout: float | None,
        waits: bool,
    ) -> None:
        self.channel = channel
        self._head = head
        self._request = request
        self._serialize = serialize
        self._parse = parse
        self._sends_stream = sends_stream
        self._waits = waits
        self.stream: ClientStream | None = None
        self._code: grpc.StatusCode | None = None
        self._details = ""
        self._trailing: Metadata = ()
        self._is_cancelled = False
        self._is_retried = False
        self._ended: asyncio.Future[None] | None = None
        self._opened: asyncio.Future[None] | None = None
        self._callbacks: list[Callable[[Any], None]] = []
        self._taker: Callable[[Any], bool] | None = None
        loop = asyncio.get_running_loop()
        self._timer = None if timeout is None else loop.call_later(timeout, self._overdue)
        self._opening: asyncio.Task[None] | None = None
        self._sending: asyncio.Task[None] | None = None
        connection = channel.live()
        if connection is not None:
            self._open(connection)
        else:
            self._opening = loop.create_task(self._connect())

    # Beginning.

    async def _connect(self) -> None:
        try:
            connection = await self.channel.connected(waits=self._waits)
        except aio.AioRpcError as error:
            self.end(error.code(), error.details() or "")
            return
        except asyncio.CancelledError:
            self.end(grpc.StatusCode.CANCELLED, "Locally cancelled by application!")
            return
        except Exception as error:
            self.end(grpc.StatusCode.INTERNAL, f"no connection: {error!r}")
            raise
        if self._code is None:
            try:
                self._open(connection)
            except Exception as error:
                self.end(grpc.StatusCode.INTERNAL, f"the call cannot be sent: {error!r}")
                raise

    def refused(self) -> bool:
        """The server has not looked at the call: whether it is sent once more, elsewhere."""
        if self._sends_stream or self._is_retried or self._code is not None:
            return False
        self._is_retried = True
        self.stream = None
        self._opening = asyncio.get_running_loop().create_task(self._connect())
        return True

    def _open(self, connection: "ClientConnection") -> None:
        serialize = self._serialize
        message = b""
        if not self._sends_stream:
            # Before there is a stream: a request that cannot be sent leaves none behind.
            message = self._request if serialize is None else serialize(self._request)
        stream = self.stream = connection.open(self)
        if self._taker is not None:
            stream.taker = self._offer
        if self._sends_stream:
            connection.send_headers(stream, self._head, last=False)
            if self._request is not None:
                self._sending = asyncio.get_running_loop().create_task(self._send_all(stream))
        else:
            connection.send_request(stream, self._head, message)
        if self._opened is not None and not self._opened.done():
            self._opened.set_result(None)

    async def _send_all(self, stream: ClientStream) -> None:
        requests = self._request
        try:
            if hasattr(requests, "__aiter__"):
                async for request in requests:
                    await self._send(stream, request)
            else:
                for request in requests:
                    await self._send(stream, request)
            stream.end_sending()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - theirs, and told
            self.cancel()
            self._details = f"the requests failed: {error!r}"
            asyncio.get_running_loop().call_exception_handler(
                {"message": "the requests of a call failed", "exception": error}
            )

    async def _send(self, stream: ClientStream, request: Any) -> None:
        if stream.is_closed:
            return
        stream.queue_message(request if self._serialize is None else self._serialize(request))
        if stream.pending or stream.connection.is_choked:
            await stream.wait_room()

    # Ending.

    def end(self, code: grpc.StatusCode, details: str, trailing: Metadata = ()) -> None:
        """The call is over; the first end counts."""
        if self._code is not None:
            return
        self._code, self._details, self._trailing = code, details, trailing
        if self._timer is not None:
            self._timer.cancel()
        if self._sending is not None:
            self._sending.cancel()
        for future in (self._ended, self._opened):
            if future is not None and not future.done():
                future.set_result(None)
        if self.stream is not None:
            self.stream.peer_ended()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def _overdue(self) -> None:
        self._give_up(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _give_up(self, code: grpc.StatusCode, details: str) -> bool:
        if self._code is not None:
            return False
        self.end(code, details)
        if self._opening is not None:
            self._opening.cancel()
        if self.stream is not None:
            self.stream.connection.reset(self.stream, ErrorCode.CANCEL)
        return True

    def cancel(self) -> bool:
        self._is_cancelled = self._code is None
        return self._give_up(grpc.StatusCode.CANCELLED, "Locally cancelled by application!")

    def cancelled(self) -> bool:
        return self._is_cancelled

    def done(self) -> bool:
        return self._code is not None

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        if self._code is not None:
            callback(self)
        else:
            self._callbacks.append(callback)

    async def _wait_end(self) -> None:
        if self._code is None:
            if self._ended is None:
                self._ended = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._ended)

    async def code(self) -> grpc.StatusCode:
        await self._wait_end()
        assert self._code is not None
        return self._code

    async def details(self) -> str:
        await self._wait_end()
        return self._details

    async def initial_metadata(self) -> aio.Metadata:
        return aio.Metadata()

    async def trailing_metadata(self) -> aio.Metadata:
        await self._wait_end()
        return aio.Metadata(*self._trailing)

    def time_remaining(self) -> float | None:
        if self._timer is None:
            return None
        return max(self._timer.when() - asyncio.get_running_loop().time(), 0.0)

    async def wait_for_connection(self) -> None:
        """Return once the call is sent; raises AioRpcError when it ends before."""
        await self._wait_opened()
        if self.stream is None:
            self._raise()

    async def _wait_opened(self) -> None:
        while self.stream is None and self._code is None:
            if self._opened is None or self._opened.done():
                self._opened = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._opened)

    def _raise(self) -> None:
        """Raises what a call that did not end well ends with."""
        if self._is_cancelled:
            raise asyncio.CancelledError
        if self._code is not grpc.StatusCode.OK:
            assert self._code is not None
            raise failure(self._code, self._details, self._trailing)

    # Messages.

    def take_by(self, taker: Callable[[Any], bool]) -> None:
        """Offer each message to `taker` where it comes, if the reader waits for one. What it
        returns True for is dealt with, and not read. It must not raise."""
        self._taker = taker
        if self.stream is not None:
            self.stream.taker = self._offer

    def _offer(self, raw: bytes) -> bool:
        assert self._taker is not None
        if self._code is not None:
            return False
        try:
            message = raw if self._parse is None else self._parse(raw)
        except DecodeError:
            # The reader is told.
            return False
        return self._taker(message)

    def write_now(self, request: Any) -> bool:
        """Send a message of a stream if nothing holds it up; otherwise it is not sent. Not while
        requests that were given with the call have something to send."""
        stream = self.stream
        if stream is None or self._code is not None or not stream.has_room:
            return False
        stream.queue_message(request if self._serialize is None else self._serialize(request))
        return True

    async def write(self, request: Any) -> None:
        """Send a message of a stream; raises what the call has ended with."""
        await self.wait_for_connection()
        assert self.stream is not None
        if self._code is not None:
            self._raise()
            raise asyncio.InvalidStateError("the call has ended")
        await self._send(self.stream, request)

    async def done_writing(self) -> None:
        await self._wait_opened()
        if self.stream is not None and self._code is None:
            self.stream.end_sending()

    async def read(self) -> Any:
        """The next message; `aio.EOF` at a good end."""
        try:
            raw = await self._next()
        except asyncio.CancelledError:
            # Whoever is interrupted in a call does not want it any more.
            self.cancel()
            raise
        if raw is None:
            self._raise()
            return aio.EOF
        try:
            return raw if self._parse is None else self._parse(raw)
        except DecodeError as error:
            self._give_up(grpc.StatusCode.INTERNAL, f"the answer cannot be read: {error}")
            self._raise()

    async def _next(self) -> bytes | None:
        while True:
            await self._wait_opened()
            stream = self.stream
            if stream is None:
                return None
            raw = stream.taken()
            if raw is None and self._code is None:
                raw = await stream.read()
                if raw is None and self.stream is not stream:
                    # Refused there, and sent once more.
                    continue
                if raw is None:
                    await self._wait_end()
            return None if self._is_cancelled else raw

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (reply := await self.read()) is not aio.EOF:
            yield reply

    async def _only(self) -> Any:
        """The one answer of a call that has one; what follows it must be a good end."""
        reply = await self.read()
        if reply is not aio.EOF:
            try:
                await self._wait_end()
            except asyncio.CancelledError:
                self.cancel()
                raise
            self._raise()
            return reply
        raise failure(grpc.StatusCode.INTERNAL, "the server sent no answer")

    def __await__(self) -> Generator[Any, None, Any]:
        return self._only().__await__()


Requests = AsyncIterable[Any] | Iterable[Any]
