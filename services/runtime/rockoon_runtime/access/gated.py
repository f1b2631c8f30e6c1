"""A method's handler behind the gate: what gRPC calls, so that only calls that pass arrive.

Requests come as bytes, because signatures are over bytes, and because what strangers send is not
parsed before they have shown who they are.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from rockoon_core.errors import InvalidArgument, RockoonError
from rockoon_runtime.access.gate import Gate
from rockoon_runtime.access.open_calls import OpenCall

Abort = Callable[[Any, RockoonError], Awaitable[None]]
Passing = Callable[[bytes | None, Callable[[], Any]], AbstractContextManager[OpenCall]]


def gated(gate: Gate, handler: Any, details: grpc.HandlerCallDetails, abort: Abort) -> Any:
    """A handler that does what another does for those who pass.

    Args:
        gate: decides.
        handler: gRPC's, of any of the four kinds; answers its own errors.
        details: of this call.
        abort: ends a call with an error.
    """
    passing = partial(gate.passing, details.method, details.invocation_metadata)
    # Made for each call, so only what it needs is.
    if handler.unary_unary:
        return one_to_one(passing, handler, abort)
    if handler.unary_stream:
        return one_to_many(passing, handler, abort)
    if handler.stream_stream:
        return many_to_many(passing, handler, abort)
    return many_to_one(passing, handler, abort)


def one_to_one(passing: Passing, handler: Any, abort: Abort) -> Any:
    answer = awaited(passing, handler, handler.unary_unary, abort)
    serialize = handler.response_serializer
    return grpc.unary_unary_rpc_method_handler(answer, response_serializer=serialize)


def awaited(passing: Passing, handler: Any, behaviour: Any, abort: Abort) -> Any:
    """A method with one request that is awaited."""
    parse = handler.request_deserializer

    async def answer(raw: bytes, context: Any) -> Any:
        try:
            with passing(raw, partial(parsed, parse, raw)) as call:
                return await behaviour(call.request, context)
        except RockoonError as refusal:
            await abort(context, refusal)

    return answer


def one_to_many(passing: Passing, handler: Any, abort: Abort) -> Any:
    parse, serialize = handler.request_deserializer, handler.response_serializer
    if inspect.iscoroutinefunction(handler.unary_stream):
        written = awaited(passing, handler, handler.unary_stream, abort)
        return grpc.unary_stream_rpc_method_handler(written, response_serializer=serialize)

    def enter(raw: bytes) -> AbstractContextManager[OpenCall]:
        return passing(raw, partial(parsed, parse, raw))

    def replies(call: OpenCall, _raw: bytes, context: Any) -> AsyncIterator[Any]:
        found: AsyncIterator[Any] = handler.unary_stream(call.request, context)
        return found

    answer = sending(enter, replies, abort)
    return grpc.unary_stream_rpc_method_handler(answer, response_serializer=serialize)


def many_to_one(passing: Passing, handler: Any, abort: Abort) -> Any:
    async def answer(requests: Any, context: Any) -> Any:
        try:
            with passing(None, no_request):
                return await handler.stream_unary(requests, context)
        except RockoonError as refusal:
            await abort(context, refusal)

    return grpc.stream_unary_rpc_method_handler(
        answer, handler.request_deserializer, handler.response_serializer
    )


def many_to_many(passing: Passing, handler: Any, abort: Abort) -> Any:
    def enter(_requests: Any) -> AbstractContextManager[OpenCall]:
        return passing(None, no_request)

    def replies(_call: OpenCall, requests: Any, context: Any) -> AsyncIterator[Any]:
        found: AsyncIterator[Any] = handler.stream_stream(requests, context)
        return found

    return grpc.stream_stream_rpc_method_handler(
        sending(enter, replies, abort), handler.request_deserializer, handler.response_serializer
    )


def sending(
    enter: Callable[[Any], AbstractContextManager[OpenCall]],
    replies: Callable[[OpenCall, Any, Any], AsyncIterator[Any]],
    abort: Abort,
) -> Callable[[Any, Any], AsyncIterator[Any]]:
    """What gRPC calls for a stream of answers.

    Args:
        enter: the time of the call, given what came: bytes, or a stream of requests.
        replies: the handler's, given the call, what came, and gRPC's context.
        abort: ends a call with an error.
    """

    async def answer(came: Any, context: Any) -> AsyncIterator[Any]:
        try:
            with enter(came) as call:
                async for reply in replies(call, came, context):
                    call.is_sending = True
                    yield reply
                    call.is_sending = False
                    if call.refusal is not None:
                        raise call.refusal
        except RockoonError as refusal:
            await abort(context, refusal)

    return answer


def parsed(parse: Any, raw: bytes) -> Any:
    """Raises InvalidArgument when it is no request."""
    try:
        return parse(raw)
    except DecodeError as failure:
        raise InvalidArgument(reason=f"it cannot be read: {failure}") from failure


def no_request() -> None:
    """A stream's requests are looked at one by one, by who takes them."""
