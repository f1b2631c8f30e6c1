"""gRPC servicer of a replicated offset service: forwards calls while this replica leads."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from rockoon_core.clock import wait_at_most
from rockoon_core.errors import NotReady, RockoonError
from rockoon_offset.in_flight.service import InFlightService
from rockoon_offset.service import OffsetService
from rockoon_proto.v1 import in_flight_pb2, offset_pb2

# How long calls wait for a new leader, which reads the routes before it serves.
EXPECTED_SECONDS_MAX = 0.5
SERVICES = (
    offset_pb2.DESCRIPTOR.services_by_name["OffsetService"],
    in_flight_pb2.DESCRIPTOR.services_by_name["InFlightService"],
)


class LeaderEndpoint:
    """gRPC servicer for clients; refuses all calls before `serve` and after `refuse`."""

    def __init__(self) -> None:
        # Method name → method; names are unique over both services. Empty while calls are refused.
        self._methods: dict[str, Callable[[Any, Any], Any]] = {}
        self._refusal: RockoonError = NotReady(
            service="the offset service", reason="it is starting"
        )
        # While `serve` is expected: set when it was called or will not be.
        self._expected: asyncio.Event | None = None
        for method in (each for service in SERVICES for each in service.methods):
            forward = self._stream if method.server_streaming else self._unary
            setattr(self, method.name, forward(method.name))

    @property
    def is_serving(self) -> bool:
        return bool(self._methods)

    def serve(self, service: OffsetService, in_flight: InFlightService) -> None:
        """Forward clients' calls to the services from now on."""
        self._methods = {
            method.name: getattr(servicer, method.name)
            for servicer, of in zip((service, in_flight), SERVICES, strict=True)
            for method in of.methods
        }
        self._end_wait()

    def hold_calls(self) -> None:
        """Block clients' calls until `serve`, at most `EXPECTED_SECONDS_MAX`, instead of refusing
        them.

        The routes already name this replica as leader, and a refused client would retry only after
        a pause.
        """
        if not self._methods and self._expected is None:
            self._expected = asyncio.Event()

    def refuse(self, refusal: RockoonError) -> None:
        """Refuse clients' calls with an error from now on."""
        self._methods, self._refusal = {}, refusal
        self._end_wait()

    def _end_wait(self) -> None:
        if self._expected is not None:
            self._expected.set()
            self._expected = None

    async def _method(self, name: str) -> Callable[[Any, Any], Any]:
        if self._expected is not None:
            await wait_at_most(EXPECTED_SECONDS_MAX, self._expected.wait())
        if not self._methods:
            raise self._refusal
        return self._methods[name]

    def _unary(self, name: str) -> Callable[[Any, Any], Any]:
        async def call(request: Any, context: Any) -> Any:
            return await (await self._method(name))(request, context)

        return call

    def _stream(self, name: str) -> Callable[[Any, Any], Any]:
        async def call(request: Any, context: Any) -> AsyncIterator[Any]:
            async for reply in (await self._method(name))(request, context):
                yield reply

        return call
