"""A call that a server handles: its stream, and the context object for gRPC servicers."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from rockoon_rpc.session import ErrorCode, Metadata
from rockoon_rpc.status import failure_text
from rockoon_rpc.stream import MessageStream

if TYPE_CHECKING:
    from rockoon_rpc.methods import Method
    from rockoon_rpc.server_connection import ServerConnection

log = logging.getLogger(__name__)


def no_objection() -> None:
    """Default of `check_may_answer`: permits every reply."""


class ServerCall(MessageStream):
    """One call of a client, from its headers to its status.

    If a unary call is answered without waiting, neither its connection nor its server registers it.

    Args:
        connection: connection of the call.
        stream_id: number of its HTTP/2 stream.
        method: the called method.
        metadata: gRPC metadata that the client sent.
        timeout: seconds until the deadline; None: no deadline.

    Attributes:
        task: runs the servicer's coroutine after its first wait; None before.
        is_entered: the server and the connection have registered the call.
        check_may_answer: called before a reply that the servicer sends itself; raises if replies
            are refused now. The server's guard calls it before other replies.
    """

    __slots__ = (
        "_code", "_deadline", "_details", "_metadata", "_timer", "_trailing", "check_may_answer",
        "has_begun", "is_entered", "method", "task",
    )  # fmt: skip

    connection: "ServerConnection"

    def __init__(
        self,
        connection: "ServerConnection",
        stream_id: int,
        method: "Method",
        metadata: Metadata,
        timeout: float | None,
    ) -> None:
        super().__init__(connection, stream_id)
        self.method = method
        self._metadata = metadata
        # A time of the loop's clock.
        self._deadline = None if timeout is None else connection.loop.time() + timeout
        self._timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None
        self.is_entered = self.has_begun = False
        self._code: grpc.StatusCode | None = None
        self._details = ""
        self._trailing: Metadata = ()
        self.check_may_answer: Callable[[], None] = no_objection

    def replies_now(self) -> bool:
        """Return whether the event that is being handled is the only event of the connection's
        current turn, and a reply to it can be sent immediately."""
        connection = self.connection
        return connection.arrives_alone and not (
            self._is_pending or connection.is_choked or self.is_closed or self.sent_last
        )

    @property
    def signs_of_life(self) -> int:
        """Signs of life of the client's connection; a counter that grows with all bytes from the
        client, also with those outside this call."""
        return self.connection.signs_of_life

    # gRPC's context.

    def invocation_metadata(self) -> Metadata:
        return self._metadata

    def peer(self) -> str:
        """Client's address in gRPC's form, "ipv4:127.0.0.1:4711"."""
        return self.connection.peer

    def auth_context(self) -> Mapping[str, list[bytes]]:
        """Fields of the client's certificate under gRPC's names; empty without a certificate."""
        return self.connection.auth_context

    def time_remaining(self) -> float | None:
        if self._deadline is None:
            return None
        return max(self._deadline - self.connection.loop.time(), 0.0)

    def set_code(self, code: grpc.StatusCode) -> None:
        self._code = code

    def set_details(self, details: str) -> None:
        self._details = details

    def set_trailing_metadata(self, metadata: Sequence[tuple[str, str | bytes]]) -> None:
        self._trailing = tuple(metadata)

    async def send_initial_metadata(self, metadata: Sequence[tuple[str, str | bytes]]) -> None:
        self.begin(tuple(metadata))

    def cancelled(self) -> bool:
        return self.is_closed

    def done(self) -> bool:
        return self.is_closed or self.sent_last

    async def abort(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing_metadata: Sequence[tuple[str, str | bytes]] = (),
    ) -> None:
        """End the call with an error status; never returns, because it raises."""
        self._code, self._details, self._trailing = code, details, tuple(trailing_metadata)
        raise aio.AbortError("Locally aborted.")

    # Answers.

    def begin(self, metadata: Metadata = ()) -> None:
        """Send the headers of the reply unless they were sent before."""
        if not (self.has_begun or self.is_closed):
            self.has_begun = True
            self.connection.session.begin(self.id, metadata)
            self.connection.wrote()

    async def requests(self, parse: Callable[[bytes], Any] | None) -> AsyncIterator[Any]:
        """Yield the requests of a client stream."""
        while True:
            raw = self.next_unread()
            if raw is None:
                raw = await self.read()
                if raw is None:
                    return
            yield raw if parse is None else parse(raw)

    def returned(self, result: Any) -> None:
        """Handle the result of a servicer: send its reply, if it has one, and the status OK."""
        if self.is_closed or self.sent_last:
            return
        method = self.method
        if not method.has_one_answer or self._code not in (None, grpc.StatusCode.OK):
            self.end()
            return
        serialize = method.serialize
        try:
            message = result if serialize is None else serialize(result)
            self._respond(message)
        except Exception as failure:  # noqa: BLE001 - logged there
            self.raised(failure)

    def _respond(self, message: bytes | list[bytes], *, framed: bool = False) -> None:
        connection = self.connection
        is_out = connection.session.respond(self.id, message, self._trailing, framed)
        self.has_begun = True
        self._sent_last(is_out=is_out)

    def _sent_last(self, *, is_out: bool) -> None:
        """Handle the queued status: the call ends once it is sent."""
        self.sent_last = True
        connection = self.connection
        if is_out and self.is_entered:
            connection.forget(self)
        elif is_out:
            # The call was never registered, and nothing waits for its end.
            self.is_closed = True
            connection.stream_over()
        else:
            self._is_pending = True
            if not self.is_entered:
                connection.enter(self)
        connection.wrote()

    async def send_all(
        self, replies: AsyncIterator[Any], check_may_answer: Callable[[], None] | None = None
    ) -> None:
        """Send all replies of a server stream. Replies that are produced without waiting share a
        write.

        Args:
            replies: an asynchronous generator; it is closed at the end.
            check_may_answer: called before each reply; raises if it is refused. None: no check.
        """
        serialize = self.method.serialize
        connection = self.connection
        self.begin()
        async with aclosing(replies):  # type: ignore[type-var]
            async for reply in replies:
                if check_may_answer is not None:
                    check_may_answer()
                self.queue_message(reply if serialize is None else serialize(reply))
                if self._is_pending or connection.is_choked:
                    await self.wait_room()

    async def write_framed(self, data: bytes, *, last: bool = False) -> None:
        """Send encoded replies, like gRPC's `write`; return once the transport has accepted them.

        Args:
            data: complete replies, each with its gRPC prefix of five bytes.
            last: these are the last replies; the status OK is sent with them.
        """
        self.check_may_answer()
        if self.is_closed or self.sent_last:
            return
        if last:
            self._respond(data, framed=True)
        else:
            self.begin()
            self.queue_message(data, framed=True)
        if self._is_pending or self.connection.is_choked:
            await self.wait_room()

    def on_received(self, then: Callable[[bool], None]) -> None:
        """Call `then` with True when the client has received the whole reply, or with False if the
        connection ends or the client cancels before; see `Receipts`."""
        if self.connection.is_lost:
            then(False)
        else:
            self.connection.receipts.ask(self.id, then)

    # Ends.

    def raised(self, failure: BaseException) -> None:
        """End the call with the status for an exception of the servicer."""
        if isinstance(failure, aio.AbortError):
            self.end()
        elif isinstance(failure, asyncio.CancelledError):
            self.end(grpc.StatusCode.CANCELLED, "the server ended the call")
        elif isinstance(failure, DecodeError):
            self.end(grpc.StatusCode.INTERNAL, f"a request cannot be read: {failure_text(failure)}")
        else:
            log.error("%s failed", self.method.path, exc_info=failure)
            self.end(grpc.StatusCode.UNKNOWN, f"Unexpected {failure_text(failure)}")

    def end(self, code: grpc.StatusCode | None = None, details: str = "") -> None:
        """Send the status, which ends the call; default: the status that the servicer has set."""
        if self.is_closed or self.sent_last:
            return
        found = code or self._code
        number = 0 if found is None else found.value[0]
        session = self.connection.session
        try:
            is_out = session.finish(self.id, number, details or self._details, self._trailing)
        except (TypeError, ValueError, UnicodeError):
            log.exception("the status of %s cannot be sent; the call is reset", self.method.path)
            self.reset(ErrorCode.INTERNAL_ERROR)
            return
        self._sent_last(is_out=is_out)

    def sent_all(self) -> None:
        super().sent_all()
        if self.sent_last:
            self.connection.forget(self)

    def watch_deadline(self) -> None:
        if self._deadline is not None:
            self._timer = self.connection.loop.call_at(self._deadline, self._overdue)

    def _overdue(self) -> None:
        self._timer = None
        self.end(grpc.StatusCode.DEADLINE_EXCEEDED, "the call's deadline is over")
        if not self.is_closed:
            # The caller has no room for an answer.
            self.reset(ErrorCode.CANCEL)
        self.give_up()

    def give_up(self) -> None:
        """Cancel the servicer's coroutine."""
        if self.task is not None:
            self.task.cancel()

    def connection_closed(self) -> None:
        """Send and accept nothing further. `failed` follows, and wakes the servicer."""
        self.is_closed = True
        self.on_message = None
        self._stop_timer()

    def failed(self, code: int, reason: str) -> None:
        super().failed(code, reason)
        self.give_up()

    def closed(self) -> None:
        super().closed()
        self._stop_timer()
        self.settle()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def settle(self, _task: object = None) -> None:
        """Unregister the call at the server once both the stream and the servicer's task have
        ended."""
        if self.is_entered and self.is_closed and (self.task is None or self.task.done()):
            self.is_entered = False
            self.connection.server.left(self)
