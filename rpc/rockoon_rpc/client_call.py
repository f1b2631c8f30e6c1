"""Calls of a channel, with those methods of grpc.aio's call objects that Rockoon uses.

If the channel is connected, a new call is sent immediately; otherwise it is sent once the channel
has connected. A failed call raises `grpc.aio.AioRpcError`, like gRPC's own calls.
"""

import asyncio
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Self, cast

import grpc
from grpc import aio

from rockoon_rpc.session import ErrorCode, Metadata
from rockoon_rpc.status import failure_text
from rockoon_rpc.stream import MessageStream

if TYPE_CHECKING:
    from rockoon_rpc.channel import Channel
    from rockoon_rpc.client_connection import ClientConnection

# Status of a call that ends with an error of HTTP/2 (gRPC over HTTP2, "Errors").
_OF_RESET: dict[int, grpc.StatusCode] = {
    ErrorCode.REFUSED_STREAM: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.CANCEL: grpc.StatusCode.CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.INADEQUATE_SECURITY: grpc.StatusCode.PERMISSION_DENIED,
}
_BY_NUMBER: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}
_OK = grpc.StatusCode.OK
_OVERDUE = "Deadline Exceeded"
_CANCELLED_HERE = "Locally cancelled by application!"


def failure(code: grpc.StatusCode, details: str, trailing: Metadata = ()) -> aio.AioRpcError:
    """Return the exception for a failed call."""
    return aio.AioRpcError(code, aio.Metadata(), aio.Metadata(*trailing), details, details)


def _notify(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


class ChannelMethod:
    """One method of a stub; `start` starts an RPC.

    Args:
        channel: the channel that sends the calls.
        name: path of the method, "/package.Service/Method".
        serialize, parse: convert a request to bytes, and a reply from bytes; None: no conversion.
        sends_stream: the requests are a stream.
        receives_stream: the replies are a stream.

    Attributes:
        head: encoded headers that all calls share; created by the first call.
    """

    __slots__ = (
        "_kind", "channel", "head", "name", "parse", "receives_stream", "sends_stream",
        "serialize",
    )  # fmt: skip

    def __init__(
        self,
        channel: "Channel",
        name: str,
        serialize: Callable[[Any], bytes] | None,
        parse: Callable[[bytes], Any] | None,
        *,
        sends_stream: bool,
        receives_stream: bool,
    ) -> None:
        self.channel = channel
        self.name = name
        self.serialize = serialize
        self.parse = parse
        self.sends_stream = sends_stream
        self.receives_stream = receives_stream
        is_unary = not (sends_stream or receives_stream)
        self._kind: type[ClientCall] = UnaryCall if is_unary else StreamCall
        self.head: Any = None

    def start(
        self,
        request: Any = None,
        timeout: float | None = None,
        metadata: Sequence[tuple[str, str | bytes]] | None = None,
        credentials: object = None,  # noqa: ARG002 - gRPC's signature
        wait_for_ready: bool | None = None,
        compression: object = None,  # noqa: ARG002
    ) -> "ClientCall":
        """Start an RPC. The arguments are gRPC's. They are not keyword-only, because CPython looks
        up the default of each keyword-only argument in a dictionary."""
        if self.head is None:
            self.head = self.channel.request_head(self.name)
        # `begin` has the arguments, because CPython runs an `__init__` with arguments in a second
        # evaluation loop.
        call = self._kind()
        call.begin(self, request, timeout, tuple(metadata) if metadata else (), wait_for_ready)
        return call


# Each subclass of `ClientCall` declares these slots itself. `StreamCall` has two bases, and Python
# allows only one base with slots.
_NO_SLOTS: tuple[str, ...] = ()
_CALL_SLOTS = (
    "_callbacks", "_code", "_details", "_is_cancelled", "_is_retried", "_opening", "_trailing",
    "_waits", "deadline", "message", "metadata", "method",
)  # fmt: skip


class ClientCall:
    """One RPC of a client, of any kind (unary or streaming). `begin` follows the constructor.

    Attributes:
        method: the called method.
        connection, id: connection of the call and number of its stream; 0 before it is sent.
        message: the request of a unary call; None for a stream of requests.
        deadline: deadline by the event loop's clock; None: no deadline.
        metadata: gRPC metadata to send.
    """

    __slots__ = _NO_SLOTS

    method: ChannelMethod
    connection: "ClientConnection"
    id: int
    message: bytes | None
    deadline: float | None
    metadata: Metadata
    _waits: bool | None
    _code: grpc.StatusCode | None
    _details: str
    _trailing: Metadata
    _is_cancelled: bool
    _is_retried: bool
    _callbacks: list[Callable[[Any], None]] | None
    _opening: asyncio.Task[None] | None
    _waiting: asyncio.Future[None] | None

    def begin(
        self,
        method: ChannelMethod,
        request: Any,
        timeout: float | None,
        metadata: Metadata,
        waits: bool | None,
    ) -> None:
        """Send the call, or start a task that connects first.

        Args:
            method: the called method.
            request: a message or an iterable of messages; None: the caller writes them later.
            timeout: seconds until the deadline; None: no deadline.
            metadata: gRPC metadata to send.
            waits: wait for a connection even after failed attempts to connect ("wait for ready").
        """
        serialize = method.serialize
        if method.sends_stream:
            self.message = None
        else:
            self.message = request if serialize is None else serialize(request)
        self.method = method
        self.id = 0
        self.metadata = metadata
        self._waits = waits
        self._code = self._callbacks = self._opening = self._waiting = None
        self._is_cancelled = self._is_retried = False
        self.deadline = None
        if timeout is not None:
            self.deadline = asyncio.get_running_loop().time() + timeout
        channel = method.channel
        connection = channel.connection
        # Mostly without a call of the channel.
        if not ((connection is not None and connection.send(self)) or channel.send_on_former(self)):
            self._opening = asyncio.get_running_loop().create_task(self._open())

    # Beginning.

    async def _open(self) -> None:
        """Send the call once a connection has room for it."""
        channel = self.method.channel
        try:
            async with asyncio.timeout_at(self.deadline):
                while self._code is None and not channel.send(self):
                    await channel.connected(waits=bool(self._waits))
        except TimeoutError:
            self.end(grpc.StatusCode.DEADLINE_EXCEEDED, _OVERDUE)
        except aio.AioRpcError as error:
            self.end(error.code(), error.details() or "")
        except (asyncio.CancelledError, aio.UsageError):
            # By `_give_up`, or because the channel is closed.
            self.end(grpc.StatusCode.CANCELLED, _CANCELLED_HERE)
        except Exception as error:
            self.end(grpc.StatusCode.INTERNAL, f"the call cannot be sent: {failure_text(error)}")
            raise

    def opened(self) -> None:
        """Called once a call with a stream of requests has been sent; subclasses override it."""

    async def wait_for_connection(self) -> None:
        """Wait until the call is sent.

        Raises:
            AioRpcError: the call ended before it was sent.
        """
        while not self.id and self._opening is not None and not self._opening.done():
            await asyncio.wait((self._opening,))
        if not self.id:
            self._raise()

    # Ending.

    def finished(self, status: int, details: str, trailing: Metadata) -> None:
        """Handle the status that the server sent at the end of the call."""
        self.end(_BY_NUMBER.get(status, grpc.StatusCode.UNKNOWN), details, trailing)

    def failed(self, code: int, reason: str) -> None:
        """Handle the failure of the call: the server reset the stream, or the connection ended."""
        if code == ErrorCode.REFUSED_STREAM and not (
            self._is_retried or self.method.sends_stream or self._code is not None
        ):
            # The server has not handled it: it is sent once more, on any connection.
            self._is_retried = True
            self.id = 0
            self._opening = asyncio.get_running_loop().create_task(self._open())
            return
        connection = self.connection
        if connection.is_lost or connection.is_closing:
            self.end(grpc.StatusCode.UNAVAILABLE, reason)
        elif code == ErrorCode.CANCEL and self.time_remaining() == 0:
            # The server's timer was earlier than this side's.
            self.overdue()
        else:
            self.end(_OF_RESET.get(code, grpc.StatusCode.INTERNAL), reason)

    def end(self, code: grpc.StatusCode, details: str, trailing: Metadata = ()) -> None:
        """End the call with a status; later calls of this method have no effect."""
        if self._code is not None:
            return
        self._code, self._details, self._trailing = code, details, trailing
        self._notify_waiting()
        if self._callbacks is not None:
            callbacks, self._callbacks = self._callbacks, None
            for callback in callbacks:
                try:
                    callback(self)
                except Exception as error:  # noqa: BLE001 - of the caller's, and reported
                    # Other calls of the turn, and other deadlines, follow.
                    asyncio.get_running_loop().call_exception_handler(
                        {"message": "a callback of a call failed", "exception": error}
                    )

    def _notify_waiting(self) -> None:
        """Wake the tasks that wait for the call, which has ended; subclasses override it."""
        raise NotImplementedError

    @property
    def _is_failed(self) -> bool:
        return self._is_cancelled or self._code is not _OK

    def overdue(self) -> None:
        """End the call because its deadline has passed."""
        self._give_up(grpc.StatusCode.DEADLINE_EXCEEDED, _OVERDUE)

    def _give_up(self, code: grpc.StatusCode, details: str) -> bool:
        if self._code is not None:
            return False
        self.end(code, details)
        if self.id:
            self.connection.reset_call(self.id)
        elif self._opening is not None:
            self._opening.cancel()
        return True

    def cancel(self) -> bool:
        """Cancel the call here and at the server; return False if it had already ended."""
        if self._code is not None:
            return False
        self._is_cancelled = True
        return self._give_up(grpc.StatusCode.CANCELLED, _CANCELLED_HERE)

    def cancelled(self) -> bool:
        return self._is_cancelled

    def done(self) -> bool:
        return self._code is not None

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        if self._code is not None:
            callback(self)
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    async def _wait_end(self) -> None:
        if self._code is None:
            ended = asyncio.get_running_loop().create_future()
            self.add_done_callback(lambda _: _notify(ended))
            await ended

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
        if self.deadline is None:
            return None
        return max(self.deadline - asyncio.get_running_loop().time(), 0.0)

    def _raise(self) -> NoReturn:
        """Raise the failure of a call that has ended."""
        assert self._code is not None
        if self._is_cancelled:
            raise asyncio.CancelledError
        raise failure(self._code, self._details, self._trailing)

    def _parsed(self, message: bytes) -> Any:
        """Parse a reply; if it is invalid, the call ends.

        Raises:
            AioRpcError: INTERNAL; the reply cannot be parsed.
        """
        parse = self.method.parse
        try:
            return message if parse is None else parse(message)
        except Exception as error:
            details = f"the answer cannot be read: {failure_text(error)}"
            self._give_up(grpc.StatusCode.INTERNAL, details)
            raise failure(grpc.StatusCode.INTERNAL, details) from error


class UnaryCall(ClientCall):
    """An RPC with one request and one reply. Awaiting it returns the reply."""

    __slots__ = (*_CALL_SLOTS, "_answer", "_waiting", "connection", "id")

    _answer: Any

    def answered(
        self, status: int, details: str, trailing: Metadata, message: bytes | None
    ) -> None:
        """Handle the reply and the status of the server (event ANSWER)."""
        if status or message is None:
            self.finished(status, details, trailing)
            return
        parse = self.method.parse
        try:
            self._answer = message if parse is None else parse(message)
        except Exception as error:  # noqa: BLE001 - the failure of the call
            self.end(grpc.StatusCode.INTERNAL, f"the answer cannot be read: {failure_text(error)}")
            return
        if self._callbacks is not None or self._code is not None:
            self.end(_OK, details, trailing)
            return
        # `end`, without its calls.
        self._code, self._details, self._trailing = _OK, details, trailing
        waiting = self._waiting
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def sent_all(self) -> None:
        """Do nothing: a call with one request waits for its reply only (event ROOM)."""

    def _notify_waiting(self) -> None:
        waiting = self._waiting
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def __await__(self) -> Generator[Any, None, Any]:
        if self._code is None:
            try:
                if self._waiting is None:
                    # Costs half of the loop's `create_future`.
                    waiting: asyncio.Future[None] = asyncio.Future()
                    self._waiting = waiting
                    yield from waiting
                else:
                    yield from self._wait_end().__await__()
            except asyncio.CancelledError:
                self.cancel()
                raise
        if self._code is not _OK:
            self._raise()
        return self._answer


class StreamCall(ClientCall, MessageStream):
    """An RPC with a stream of requests, of replies, or of both.

    Attributes:
        on_message: as in `MessageStream`, but called with parsed messages.
    """

    __slots__ = (*_CALL_SLOTS, "_requests", "_sending")

    connection: "ClientConnection"
    on_message: Callable[[Any], bool] | None

    def __init__(self) -> None:
        # The connection is known when the call is sent.
        MessageStream.__init__(self, cast(Any, None), 0)

    def begin(
        self,
        method: ChannelMethod,
        request: Any,
        timeout: float | None,
        metadata: Metadata,
        waits: bool | None,
    ) -> None:
        self._requests: Any = request if method.sends_stream else None
        self._sending: asyncio.Task[None] | None = None
        ClientCall.begin(self, method, request, timeout, metadata, waits)

    def opened(self) -> None:
        if self._requests is not None:
            self._sending = asyncio.get_running_loop().create_task(self._send_all())

    def _notify_waiting(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
        self.closed()

    # Requests.

    async def _send_all(self) -> None:
        requests, self._requests = self._requests, None
        try:
            if hasattr(requests, "__aiter__"):
                async for request in requests:
                    await self.send_message(self._serialized(request))
            else:
                for request in requests:
                    await self.send_message(self._serialized(request))
            self._end_requests()
        except Exception as error:  # noqa: BLE001 - of the caller's iterator, and reported
            self._is_cancelled = self._code is None
            self._give_up(grpc.StatusCode.CANCELLED, f"the requests failed: {failure_text(error)}")
            asyncio.get_running_loop().call_exception_handler(
                {"message": "the requests of a call failed", "exception": error}
            )

    def _serialized(self, request: Any) -> bytes:
        serialize = self.method.serialize
        message: bytes = request if serialize is None else serialize(request)
        return message

    def _end_requests(self) -> None:
        if not (self.sent_last or self.is_closed):
            self.sent_last = True
            self.connection.session.end(self.id)
            self.connection.wrote()

    def write_now(self, request: Any) -> bool:
        """Send a request if it can be sent immediately; return whether it was sent.

        If the call was started with an iterator of requests, the caller must ensure that the
        iterator has no request to send: otherwise the order of the requests is undefined.
        """
        if not self.id or self._is_pending or self.sent_last or self._code is not None:
            return False
        connection = self.connection
        if connection.is_choked:
            return False
        serialize = self.method.serialize
        message = request if serialize is None else serialize(request)
        if not connection.session.send(self.id, message):
            self._is_pending = True
        connection.wrote()
        return True

    async def write(self, request: Any) -> None:
        """Send a request; return once the next one may be sent.

        Raises:
            AioRpcError: the call has failed.
            InvalidStateError: the call has ended with status OK.
        """
        await self.wait_for_connection()
        if self._code is not None:
            if self._is_failed:
                self._raise()
            raise asyncio.InvalidStateError("the call has ended")
        await self.send_message(self._serialized(request))

    async def done_writing(self) -> None:
        """Half-close the call: the client sends no further requests."""
        await self.wait_for_connection()
        self._end_requests()

    # Answers.

    def answered(
        self, status: int, details: str, trailing: Metadata, message: bytes | None
    ) -> None:
        """Handle the server's reply to a stream of requests (event ANSWER)."""
        if message is not None:
            self.received(message)
        self.finished(status, details, trailing)

    def received(self, message: bytes) -> None:
        on_message, waiting = self.on_message, self._waiting
        if not (on_message is None or waiting is None or self._unread or waiting.done()):
            try:
                if on_message(self._parsed(message)):
                    return
            except aio.AioRpcError:
                # The call is over; the reader raises its failure.
                return
        self._add_unread(message)

    async def read(self) -> Any:
        """Return the next reply, or `aio.EOF` at the end of a call with status OK.

        Raises:
            AioRpcError: the call has failed.
        """
        message = self.next_unread()
        if message is None and self._code is None:
            try:
                message = await super().read()
            except asyncio.CancelledError:
                self.cancel()
                raise
        if message is not None and not self._is_cancelled:
            return self._parsed(message)
        if self._is_failed:
            self._raise()
        return aio.EOF

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        if self._unread and not self._is_cancelled:
            return self._parsed(cast(bytes, self.next_unread()))
        message = await self.read()
        if message is aio.EOF:
            raise StopAsyncIteration
        return message

    async def _only(self) -> Any:
        """Return the only reply of a call that ended with status OK."""
        answer = await self.read()
        if answer is aio.EOF:
            raise failure(grpc.StatusCode.INTERNAL, "the server sent no answer")
        try:
            await self._wait_end()
        except asyncio.CancelledError:
            self.cancel()
            raise
        if self._is_failed:
            self._raise()
        return answer

    def __await__(self) -> Generator[Any, None, Any]:
        return self._only().__await__()
