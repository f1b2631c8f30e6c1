"""A call that a server answers: its stream, and the context that gRPC's servicers are given."""

import asyncio
import logging
import types
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import grpc
from grpc import aio

from rockoon_core.http2.frames import ErrorCode
from rockoon_core.http2.headers import Metadata, block, percent_encoded
from rockoon_core.http2.messages import PREFIX, MessageStream

if TYPE_CHECKING:
    from rockoon_runtime.http2_server import ServerConnection

log = logging.getLogger(__name__)

# ":status: 200" is entry 8 of HPACK's static table.
ANSWER_HEADERS = b"\x88" + block([("content-type", "application/grpc")])
# Stands for the end of a stream of answers.
_OVER: Any = object()
SUCCESS = block([("grpc-status", "0")])


class ServerCall(MessageStream):
    """One call, from its headers to its trailers; also what servicers know as its context.

    Args:
        connection: that it came by.
        stream_id: its number there.
        message_bytes_max: longer requests are refused.
        method: the call's path.
        metadata: what its caller sent along.
        deadline: of the loop's clock; None for a call without.
    """

    __slots__ = (
        "_code", "_deadline", "_deadline_timer", "_details", "_metadata", "_trailing",
        "has_begun", "header_bytes", "may_answer", "method", "request_due", "task",
    )  # fmt: skip

    connection: "ServerConnection"

    def __init__(
        self,
        connection: "ServerConnection",
        stream_id: int,
        message_bytes_max: int,
        method: str,
        metadata: Metadata,
        deadline: float | None,
    ) -> None:
        super().__init__(connection, stream_id, message_bytes_max)
        self.method = method
        self._metadata = metadata
        self._deadline = deadline
        self._deadline_timer: asyncio.TimerHandle | None = None
        if deadline is not None:
            loop = asyncio.get_running_loop()
            self._deadline_timer = loop.call_at(deadline, self._overdue)
        self.task: asyncio.Task[None] | None = None
        # When its request has to be complete, of the loop's clock; 0.0 when nothing awaits it.
        self.request_due = 0.0
        # What the connection counts for its headers.
        self.header_bytes = 0
        # Its headers are sent.
        self.has_begun = False
        self._code: grpc.StatusCode | None = None
        self._details = ""
        self._trailing: Sequence[tuple[str, str | bytes]] = ()
        # Asked before each answer that does not pass the guard; raises what keeps it back.
        self.may_answer: Callable[[], None] = lambda: None

    @property
    def comes_alone(self) -> bool:
        """Whether nothing else came with the message that is told of, as far as can be seen."""
        return self.connection.comes_alone

    @property
    def signs_of_life(self) -> int:
        """As of its connection: grows with whatever the caller sends, also beside the call."""
        return self.connection.signs_of_life

    # gRPC's context.

    def invocation_metadata(self) -> Metadata:
        return self._metadata

    def peer(self) -> str:
        """The caller's address as gRPC writes it, "ipv4:127.0.0.1:4711"."""
        return self.connection.peer

    def auth_context(self) -> Mapping[str, list[bytes]]:
        """What the caller's certificate says, under gRPC's names; empty without one."""
        return self.connection.auth_context

    def time_remaining(self) -> float | None:
        if self._deadline is None:
            return None
        return max(self._deadline - asyncio.get_running_loop().time(), 0.0)

    def set_code(self, code: grpc.StatusCode) -> None:
        self._code = code

    def set_details(self, details: str) -> None:
        self._details = details

    def set_trailing_metadata(self, metadata: Sequence[tuple[str, str | bytes]]) -> None:
        self._trailing = metadata

    async def send_initial_metadata(self, metadata: Sequence[tuple[str, str | bytes]]) -> None:
        self.begin(metadata)

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
        """End the call with a status; does not return."""
        self._code, self._details, self._trailing = code, details, trailing_metadata
        raise aio.AbortError("Locally aborted.")

    # What the server does with it.

    def begin(self, metadata: Sequence[tuple[str, str | bytes]] = ()) -> None:
        """Send the answer's headers, if they are not sent."""
        if not self.has_begun:
            self.has_begun = True
            self.queue_headers(ANSWER_HEADERS + block(metadata), last=False)

    async def requests(self, parse: Callable[[bytes], Any] | None) -> AsyncIterator[Any]:
        """The messages of a stream of requests."""
        while (raw := await self.read()) is not None:
            yield raw if parse is None else parse(raw)

    def answer(self, message: bytes) -> None:
        """The only answer, and a good end: all in one write when windows have room."""
        if self.is_closed:
            return
        trailers = SUCCESS + block(self._trailing)
        if self._code not in (None, grpc.StatusCode.OK):
            self.end(self._code, self._details)
        elif self.has_begun:
            self.queue_message(message)
            self.queue_headers(trailers, last=True)
        else:
            self.has_begun = True
            self.connection.send_answer(
                self, ANSWER_HEADERS, PREFIX.pack(0, len(message)), message, trailers
            )

    async def write_framed(self, data: bytes, *, last: bool = False) -> None:
        """Send answers of a method that writes them itself, as gRPC's do with `write`; return when
        they are with the transport.

        Args:
            data: their bytes, each answer behind its five; none may be cut.
            last: none follows: they and a good end go out in one write when windows have room.
        """
        self.may_answer()
        if last and not (self.has_begun or self.is_closed):
            self.has_begun = True
            self.connection.send_answer(self, ANSWER_HEADERS, b"", data, SUCCESS)
        else:
            self.connection.hold_writes()
            try:
                self.begin()
                self.connection.send_data(self, b"", data, last=False)
                if last:
                    self.end()
            finally:
                self.connection.release_writes()
        if self.pending or self.connection.is_choked:
            await self.wait_room()

    def on_received(self, then: Callable[[bool], None]) -> None:
        """Call `then` with True when the caller has received all that was written, with False if
        it has not before the connection ends or the caller cancels; see `ReceiptPings`."""
        if self.connection.is_lost:
            then(False)
        else:
            self.connection.receipts.ask(self.id, then)

    async def answer_stream(
        self, stream: AsyncGenerator[Any, None], serialize: Callable[[Any], bytes] | None
    ) -> None:
        """All answers of a stream, and a good end; what it says without waiting goes out in one
        write: what a receiver is told is four messages."""
        connection = self.connection
        connection.hold_writes()
        try:
            self.begin()
            async with aclosing(stream) as replies:
                while True:
                    reply = await before_waiting(anext(replies, _OVER), connection.release_writes)
                    if reply is _OVER:
                        break
                    connection.hold_writes()
                    self.queue_message(reply if serialize is None else serialize(reply))
                    if self.pending or connection.is_choked:
                        connection.release_writes()
                        await self.wait_room()
                self.end()
        finally:
            connection.release_writes()

    def end(self, code: grpc.StatusCode | None = None, details: str = "") -> None:
        """Send the trailers, which end the call; without a code those that were set."""
        if self.is_closed or self.sent_last:
            return
        code = code or self._code or grpc.StatusCode.OK
        details = details or self._details
        trailers = [("grpc-status", str(code.value[0]))]
        if details:
            trailers.append(("grpc-message", percent_encoded(details)))
        sent = block(trailers) + block(self._trailing)
        self.queue_headers(sent if self.has_begun else ANSWER_HEADERS + sent, last=True)
        self.has_begun = True

    def _overdue(self) -> None:
        self._deadline_timer = None
        self.end(grpc.StatusCode.DEADLINE_EXCEEDED, "the call's deadline is over")
        if self.pending:
            # An answer that the caller has no room for.
            self.connection.reset(self, ErrorCode.CANCEL)
        self._give_up()

    def failed(self, code: ErrorCode, reason: str) -> None:
        super().failed(code, reason)
        self._give_up()

    def _wake(self) -> None:
        if self.request_due and not self.is_closed:
            # It has no task yet that could wait.
            self.connection.request_came(self)
        else:
            super()._wake()

    def closed(self) -> None:
        super().closed()
        if self.header_bytes:
            self.connection.header_bytes -= self.header_bytes
            self.header_bytes = 0
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None

    def _give_up(self) -> None:
        if self.task is not None:
            self.task.cancel()


@types.coroutine
def before_waiting(awaitable: Awaitable[Any], callback: Callable[[], None]) -> Any:
    """Await something; if that means to wait, a callback is called before."""
    steps: Any = awaitable.__await__()
    try:
        wanted = steps.send(None)
        callback()
        while True:
            try:
                yield wanted
            except BaseException as thrown:  # noqa: BLE001 - handed on, as `await` does
                wanted = steps.throw(thrown)
            else:
                wanted = steps.send(None)
    except StopIteration as over:
        return over.value
