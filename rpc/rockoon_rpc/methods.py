"""Methods of a server: gRPC's method handlers, prepared once per method."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from rockoon_rpc.first_step import Steps


class CallDetails(NamedTuple):
    """Description of a call for interceptors, like gRPC's HandlerCallDetails."""

    method: str
    invocation_metadata: Any = ()


class Method:
    """One method of a servicer.

    Args:
        path: "/package.Service/Method".
        handler: gRPC's RpcMethodHandler, of any of the four kinds. A method with one request and a
            stream of replies may be a coroutine that writes its replies itself (`write_framed`).
    """

    __slots__ = (
        "_behaviour",
        "has_one_answer",
        "parse",
        "path",
        "reads_stream",
        "serialize",
        "start",
    )

    def __init__(self, path: str, handler: Any) -> None:
        self.path = path
        self.parse: Callable[[bytes], Any] | None = handler.request_deserializer
        self.serialize: Callable[[Any], Any] | None = handler.response_serializer
        self.reads_stream: bool = handler.request_streaming
        self.has_one_answer = not handler.response_streaming
        behaviour: Any = (
            handler.unary_unary
            or handler.unary_stream
            or handler.stream_unary
            or handler.stream_stream
        )
        self._behaviour = behaviour
        # Makes the coroutine that answers, from the request (or a stream of requests) and the call.
        self.start: Callable[[Any, Any], Steps] = behaviour
        if inspect.iscoroutinefunction(behaviour):
            pass
        elif self.has_one_answer:
            self.start = self._awaited
        else:
            self.start = self._sent

    async def _awaited(self, request: Any, call: Any) -> Any:
        return await self._behaviour(request, call)

    async def _sent(self, request: Any, call: Any) -> None:
        replies = self._behaviour(request, call)
        if inspect.isawaitable(replies):
            # It writes them itself.
            await replies
        else:
            await call.send_all(replies)
