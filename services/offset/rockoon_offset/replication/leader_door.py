"""The services on the wire while their journal has copies: answered by those of the life in which
this replica leads, and refused in between.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from rockoon_core.errors import NotReady, RockoonError
from rockoon_offset.in_flight.service import InFlightService
from rockoon_offset.service import OffsetService
from rockoon_proto.v1 import in_flight_pb2, offset_pb2

# A new leader reads the routes before it answers.
EXPECTED_SECONDS_MAX = 0.5
SERVICES = (
    offset_pb2.DESCRIPTOR.services_by_name["OffsetService"],
    in_flight_pb2.DESCRIPTOR.services_by_name["InFlightService"],
)


class LeaderDoor:
    """The servicer. Refuses everything until `serve`, and after `refuse`."""

    def __init__(self) -> None:
        # Methods by their names, which are different in all services; none while nobody serves.
        self._methods: dict[str, Callable[[Any, Any], Any]] = {}
        self._refusal: RockoonError = NotReady(service="the offset service", reason="it starts")
        # Set once it is known whether the service that is expected answers.
        self._expected: asyncio.Event | None = None
        for method in (each for service in SERVICES for each in service.methods):
            forward = self._stream if method.server_streaming else self._unary
            setattr(self, method.name, forward(method.name))

    @property
    def is_serving(self) -> bool:
        return bool(self._methods)

    def serve(self, service: OffsetService, in_flight: InFlightService) -> None:
        """Answer calls from now on."""
        self._methods = {
            method.name: getattr(servicer, method.name)
            for servicer, of in zip((service, in_flight), SERVICES, strict=True)
            for method in of.methods
        }
        self._decide()

    def expect(self) -> None:
        """Let calls wait a moment for `serve`: the routes lead here already, and who was refused
        now would come back only after a pause."""
        if not self._methods and self._expected is None:
            self._expected = asyncio.Event()

    def refuse(self, refusal: RockoonError) -> None:
        """Take no new calls."""
        self._methods, self._refusal = {}, refusal
        self._decide()

    def _decide(self) -> None:
        if self._expected is not None:
            self._expected.set()
            self._expected = None

    async def _open(self, name: str) -> Callable[[Any, Any], Any]:
        if self._expected is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(EXPECTED_SECONDS_MAX):
                    await self._expected.wait()
        if not self._methods:
            raise self._refusal
        return self._methods[name]

    def _unary(self, name: str) -> Callable[[Any, Any], Any]:
        async def call(request: Any, context: Any) -> Any:
            return await (await self._open(name))(request, context)

        return call

    def _stream(self, name: str) -> Callable[[Any, Any], Any]:
        async def call(request: Any, context: Any) -> AsyncIterator[Any]:
            async for reply in (await self._open(name))(request, context):
                yield reply

        return call
