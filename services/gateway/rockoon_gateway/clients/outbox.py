"""Outbox: commands on their way to a client, by one Telemetry stream."""

import asyncio
from collections.abc import Callable

from rockoon_core.errors import RockoonError
from rockoon_gateway.calls import ClientCall
from rockoon_gateway.codes import Refusal
from rockoon_proto.apache.rocketmq.v2.service_pb2 import TelemetryCommand
from rockoon_runtime.access.keys import Action

# A client that does not read is told no more.
COMMANDS_MAX = 100


class Outbox:
    """What one stream is still to send; ended by `close`.

    Args:
        call: the stream's.
        signs_of_life: counts arrivals of bytes on the stream's connection.
    """

    def __init__(self, call: ClientCall, signs_of_life: Callable[[], int] = lambda: 0) -> None:
        self._call = call
        self.signs_of_life = signs_of_life
        self._commands: asyncio.Queue[TelemetryCommand | None] = asyncio.Queue()
        self._closed = False

    def allows(self, action: Action, resource: str) -> bool:
        """Whether the client's key may do something now; arguments as of `ClientCall.require`."""
        try:
            self._call.renewed().require(action, resource)
        except (Refusal, RockoonError):
            return False
        return True

    def put(self, command: TelemetryCommand) -> bool:
        """Send a command; False when the stream has ended, or its client does not read."""
        if self._closed or self._commands.qsize() >= COMMANDS_MAX:
            return False
        self._commands.put_nowait(command)
        return True

    def close(self) -> None:
        """End the stream behind what was put."""
        if not self._closed:
            self._closed = True
            self._commands.put_nowait(None)

    async def next(self) -> TelemetryCommand | None:
        """The next command; None at the end."""
        return await self._commands.get()
