"""Outbox: commands to be sent to a client on one Telemetry stream."""

import asyncio
from collections.abc import Callable

from rockoon_core.errors import RockoonError
from rockoon_gateway.calls import GatewayCall
from rockoon_gateway.codes import Refusal
from rockoon_proto.apache.rocketmq.v2.service_pb2 import TelemetryCommand
from rockoon_runtime.access.keys import Action

# More are dropped: the client does not read the stream.
COMMANDS_MAX = 100


class Outbox:
    """Commands of the gateway that wait to be sent on one client's Telemetry stream; ended by
    `close`.

    Args:
        call: of the stream.
        signs_of_life: counts arrivals of bytes on the stream's connection.
    """

    def __init__(self, call: GatewayCall, signs_of_life: Callable[[], int] = lambda: 0) -> None:
        self._call = call
        self.signs_of_life = signs_of_life
        self._commands: asyncio.Queue[TelemetryCommand | None] = asyncio.Queue()
        self._closed = False

    def allows(self, action: Action, resource: str) -> bool:
        """True if the client's key has a permission now; arguments like `GatewayCall.require`."""
        try:
            self._call.renewed().require(action, resource)
        except (Refusal, RockoonError):
            return False
        return True

    def put(self, command: TelemetryCommand) -> bool:
        """Queue a command for the client; False if the stream has ended, or the client does not
        read it.
        """
        if self._closed or self._commands.qsize() >= COMMANDS_MAX:
            return False
        self._commands.put_nowait(command)
        return True

    def close(self) -> None:
        """End the stream after the queued commands were sent."""
        if not self._closed:
            self._closed = True
            self._commands.put_nowait(None)

    async def next(self) -> TelemetryCommand | None:
        """Wait for the next command and return it; None after the end."""
        return await self._commands.get()
