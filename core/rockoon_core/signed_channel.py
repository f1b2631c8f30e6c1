"""Channels that sign each call with an access key.

Wrappers instead of gRPC's interceptors: those add an object and a task to each call, and see
requests before they are serialized. Here a call is gRPC's own.
"""

from collections.abc import Callable
from typing import Any, Protocol, Self, cast

import grpc
from grpc import aio

from rockoon_core.signature import Signer

Serialize = Callable[[Any], bytes]


class _Opener(Protocol):
    """The common methods of both kinds of channel."""

    def unary_unary(self, method: str, *args: Any, **options: Any) -> Any: ...
    def unary_stream(self, method: str, *args: Any, **options: Any) -> Any: ...
    def stream_unary(self, method: str, *args: Any, **options: Any) -> Any: ...
    def stream_stream(self, method: str, *args: Any, **options: Any) -> Any: ...


class SignedCall:
    """A method of a stub.

    Args:
        call: gRPC's; a single request is passed as bytes.
        signer: of the channel.
        method: "/package.Service/Method".
        serialize: serializes the request; None for a stream of requests, which gRPC serializes.
    """

    def __init__(self, call: Any, signer: Signer, method: str, serialize: Serialize | None) -> None:
        self._call = call
        self._signer = signer
        self._method = method
        self._serialize = serialize

    def __call__(self, request: Any = None, *, metadata: Any = None, **options: Any) -> Any:
        request, metadata = self._signed(request, metadata)
        return self._call(request, metadata=metadata, **options)

    def future(self, request: Any, *, metadata: Any = None, **options: Any) -> Any:
        request, metadata = self._signed(request, metadata)
        return self._call.future(request, metadata=metadata, **options)

    def with_call(self, request: Any, *, metadata: Any = None, **options: Any) -> Any:
        request, metadata = self._signed(request, metadata)
        return self._call.with_call(request, metadata=metadata, **options)

    def _signed(self, request: Any, metadata: Any) -> tuple[Any, tuple[tuple[str, Any], ...]]:
        body = None
        if self._serialize is not None:
            request = body = self._serialize(request)
        return request, (*(metadata or ()), self._signer.entry(self._method, body))


class _Signing:
    """Opens signed calls on a channel."""

    def __init__(self, channel: _Opener, signer: Signer) -> None:
        self._opener = channel
        self._signer = signer

    def unary_unary(self, method: str, *args: Any, **options: Any) -> Any:
        return self._one_request(self._opener.unary_unary, method, *args, **options)

    def unary_stream(self, method: str, *args: Any, **options: Any) -> Any:
        return self._one_request(self._opener.unary_stream, method, *args, **options)

    def stream_unary(self, method: str, *args: Any, **options: Any) -> Any:
        call = self._opener.stream_unary(method, *args, **options)
        return SignedCall(call, self._signer, method, None)

    def stream_stream(self, method: str, *args: Any, **options: Any) -> Any:
        call = self._opener.stream_stream(method, *args, **options)
        return SignedCall(call, self._signer, method, None)

    def _one_request(
        self,
        opened: Callable[..., Any],
        method: str,
        request_serializer: Serialize | None = None,
        *args: Any,
        **options: Any,
    ) -> Any:
        """Open a call without gRPC's serializer: it gets the bytes that were signed."""
        call = opened(method, None, *args, **options)
        return SignedCall(call, self._signer, method, request_serializer or bytes)


class SignedChannel(_Signing, aio.Channel):
    """An asyncio channel whose calls are signed."""

    def __init__(self, channel: aio.Channel, signer: Signer) -> None:
        super().__init__(cast(_Opener, channel), signer)
        self._channel = channel

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await self._channel.close()

    async def close(self, grace: float | None = None) -> None:
        await self._channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._channel.channel_ready()


class SignedBlockingChannel(_Signing, grpc.Channel):
    """A blocking channel whose calls are signed."""

    def __init__(self, channel: grpc.Channel, signer: Signer) -> None:
        super().__init__(cast(_Opener, channel), signer)
        self._channel = channel

    def subscribe(self, callback: Any, try_to_connect: bool = False) -> None:
        self._channel.subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Any) -> None:
        self._channel.unsubscribe(callback)

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: Any) -> None:
        self._channel.close()
