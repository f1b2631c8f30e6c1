"""A method behind the gate: only permitted calls reach it.

Requests arrive as bytes because signatures cover bytes, and because requests of strangers are not
parsed before their signature is verified.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from google.protobuf.message import DecodeError

from rockoon_core.errors import InvalidArgument, RockoonError
from rockoon_runtime.access.gate import Gate

Abort = Callable[[Any, RockoonError], Awaitable[None]]
Behaviour = Callable[[Any, Any], Awaitable[Any]]


def gated(
    gate: Gate,
    path: str,
    behaviour: Behaviour,
    parse: Callable[[bytes], Any] | None,
    abort: Abort,
    *,
    is_stream: bool,
) -> Behaviour:
    """A coroutine method that runs `behaviour` for permitted calls.

    Args:
        gate: permits or refuses calls.
        path: path of the method.
        behaviour: the method; it handles its own errors.
        parse: parses a request.
        abort: ends a call with an error.
        is_stream: the method has a stream of requests. The method checks each request itself.
    """

    async def answer(request: Any, context: Any) -> Any:
        metadata = context.invocation_metadata()
        try:
            if is_stream:
                with gate.passing(path, metadata, None, no_request):
                    return await behaviour(request, context)
            with gate.passing(path, metadata, request, partial(parsed, parse, request)) as call:
                return await behaviour(call.request, context)
        except RockoonError as refusal:
            await abort(context, refusal)

    return answer


def parsed(parse: Callable[[bytes], Any] | None, raw: Any) -> Any:
    """Raises InvalidArgument for bytes that are not a valid request."""
    try:
        return raw if parse is None else parse(raw)
    except DecodeError as failure:
        raise InvalidArgument(reason=f"it cannot be read: {failure}") from failure


def no_request() -> None:
    """The request of a stream: none, because the method checks each request itself."""
