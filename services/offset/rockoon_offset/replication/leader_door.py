"""The OffsetService on the wire while its journal has copies: answered by the service of the life
in which this replica leads, and refused in between.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from rockoon_core.errors import NotReady, RockoonError
from rockoon_offset.service import OffsetService
from rockoon_proto.v1.offset_pb2 import DESCRIPTOR

# A new leader reads the routes before it answers.
EXPECTED_SECONDS_MAX = 0.5


class LeaderDoor:
    """The servicer. Refuses everything until `serve`, and after `refuse`."""

    def __init__(self) -> None:
        self._service: OffsetService | None = None
        self._refusal: RockoonError = NotReady(service="the offset service", reason="it starts")
        # Set once it is known whether the service that is expected answers.
        self._expected: asyncio.Event | None = None
        for method in DESCRIPTOR.services_by_name["OffsetService"].methods:
            forward = self._stream if method.server_streaming else self._unary
            setattr(self, method.name, forward(method.name))

    @property
    def is_serving(self) -> bool:
        return self._service is not None

    def serve(self, service: OffsetService) -> None:
        """Answer calls from now on."""
        self._service = service
        self._decide()

    def expect(self) -> None:
        """Let calls wait a moment for `serve`: the routes lead here already, and who was refused
        now would come back only after a pause."""
        if self._service is None and self._expected is None:
            self._expected = asyncio.Event()

    def refuse(self, refusal: RockoonError) -> None:
        """Take no new calls."""
        self._service, self._refusal = None, refusal
        self._decide()

    def _decide(self) -> None:
        if self._expected is not None:
            self._expected.set()
            self._expected = None

    async def _open(self) -> OffsetService:
        if self._expected is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(EXPECTED_SECONDS_MAX):
                    await self._expected.wait()
        if self._service is None:
            raise self._refusal
        return self._service

    def _unary(self, name: str) -> Callable[[Any, Any], Any]:
        async def call(request: Any, context: Any) -> Any:
            return await getattr(await self._open(), name)(request, context)

        return call

    def _stream(self, name: str) -> Callable[[Any, Any], Any]:
        async def call(request: Any, context: Any) -> AsyncIterator[Any]:
            async for reply in getattr(await self._open(), name)(request, context):
                yield reply

        return call
