"""Telemetry streams: replies to clients' settings, and commands of the gateway to clients.

No other call needs a stream: it may end, and clients of some languages never open another.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

from google.protobuf.message import DecodeError

from rockoon_core.errors import InvalidArgument, RockoonError
from rockoon_gateway.calls import GatewayCall
from rockoon_gateway.clients.client_settings import GroupFacts, answered, check_settings, is_node
from rockoon_gateway.clients.presence import CONSUMERS, GatewayClient, Outbox, Presence
from rockoon_gateway.codes import OK, Refusal
from rockoon_gateway.groups import LITE_CLIENTS, CachedGroups
from rockoon_gateway.lite.subscribing import lite_parent
from rockoon_gateway.names import checked_group, checked_topic
from rockoon_gateway.routes import TopicRoutes
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code, Settings
from rockoon_proto.apache.rocketmq.v2.service_pb2 import TelemetryCommand

log = logging.getLogger(__name__)

# Node.js waits for settings that arrive after it has started to wait. With three or more topics it
# starts after the first reply: without a repeated reply it waits forever.
NODE_REPEATS_SECONDS = (0.5, 2.0)


class TelemetryStreams:
    """Serves the clients' Telemetry streams.

    Args:
        topics: finds parents of lite topics.
        tasks: owns the tasks that read streams.

    Attributes:
        body_bytes_max: see the argument; may change, and clients receive it with their next
            settings.
    """

    def __init__(
        self,
        presence: Presence,
        topics: TopicRoutes,
        groups: CachedGroups,
        body_bytes_max: int,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._presence = presence
        self._topics = topics
        self._groups = groups
        self.body_bytes_max = body_bytes_max
        self._tasks = tasks
        self._outboxes: set[Outbox] = set()
        # Awaited replies of clients, by nonce.
        self._awaited: dict[str, asyncio.Future[TelemetryCommand]] = {}

    def __len__(self) -> int:
        return len(self._outboxes)

    async def stream(
        self,
        requests: AsyncIterator[TelemetryCommand],
        call: GatewayCall,
        signs_of_life: Callable[[], int],
    ) -> AsyncGenerator[TelemetryCommand, None]:
        """Serve the Telemetry stream of one client. Raises Refusal, RockoonError: the settings are
        refused, which ends the stream."""
        outbox = Outbox(call, signs_of_life)
        failures: list[Refusal | RockoonError] = []
        client = self._presence.record_call(call)
        client.outboxes.append(outbox)
        self._outboxes.add(outbox)
        reading = self._tasks.create_task(
            self._read(requests, call, outbox, failures), name=f"telemetry of {call.client_id}"
        )
        try:
            while (command := await outbox.next()) is not None:
                yield command
        finally:
            reading.cancel()
            outbox.close()
            self._outboxes.discard(outbox)
            client.outboxes.remove(outbox)
        if failures:
            raise failures[0]

    async def ask(
        self, client: GatewayClient, nonce: str, command: TelemetryCommand, seconds: float
    ) -> TelemetryCommand | None:
        """Send a command to a client and return its reply; None without one in `seconds`."""
        answer: asyncio.Future[TelemetryCommand] = asyncio.get_running_loop().create_future()
        self._awaited[nonce] = answer
        try:
            # The newest stream first: an older one may belong to a lost connection.
            if not any(outbox.put(command) for outbox in reversed(client.outboxes)):
                return None
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            return None
        finally:
            del self._awaited[nonce]

    def close(self) -> None:
        """End all streams: the gateway stops."""
        for outbox in self._outboxes:
            outbox.close()

    async def _read(
        self,
        requests: AsyncIterator[TelemetryCommand],
        call: GatewayCall,
        outbox: Outbox,
        failures: list[Refusal | RockoonError],
    ) -> None:
        try:
            async for command in requests:
                now = call.renewed()
                self._presence.record_call(now)
                if command.HasField("settings"):
                    await self._answer(command.settings, now, outbox)
                else:
                    self._complete_ask(command)
        except (Refusal, RockoonError) as failure:
            failures.append(failure)
        except DecodeError as failure:
            failures.append(InvalidArgument(reason=f"a command cannot be read: {failure}"))
        except Exception:
            # The root of a task.
            log.exception("unexpected error in a telemetry stream (bug)")
        finally:
            outbox.close()

    async def _answer(self, settings: Settings, call: GatewayCall, outbox: Outbox) -> None:
        facts = await self._checked(settings, call)
        self._presence.record_settings(call, settings)
        node = is_node(settings)
        answer = answered(settings, self.body_bytes_max, facts, is_node=node)
        # Python ignores replies without a status.
        command = TelemetryCommand(status=OK, settings=answer)
        outbox.put(command)
        if node:
            loop = asyncio.get_running_loop()
            for seconds in NODE_REPEATS_SECONDS:
                loop.call_later(seconds, outbox.put, command)

    async def _checked(self, settings: Settings, call: GatewayCall) -> GroupFacts:
        check_settings(settings)
        for topic in settings.publishing.topics:
            call.require_topic("write", checked_topic(topic, call.namespace))
        read = [
            checked_topic(entry.topic, call.namespace)
            for entry in settings.subscription.subscriptions
        ]
        for each in read:
            call.require_topic("read", each)
        if settings.client_type not in CONSUMERS:
            return GroupFacts()
        group = checked_group(settings.subscription.group, call.namespace)
        call.require("read", f"group:{group}")
        if settings.client_type not in LITE_CLIENTS:
            return await self._groups.facts(group)
        if len(read) != 1:
            raise Refusal(Code.ILLEGAL_TOPIC, "a lite consumer is bound to one topic")
        # Before the group is created, which then stays bound to the topic.
        if await lite_parent(self._topics, read[0]) is None:
            raise Refusal(Code.ILLEGAL_TOPIC, f"topic {read[0]!r} has no lite topics")
        return await self._groups.facts(group, read[0])

    def _complete_ask(self, command: TelemetryCommand) -> None:
        nonce = _nonce(command)
        answer = self._awaited.get(nonce)
        if answer is not None and not answer.done():
            answer.set_result(command)


def _nonce(command: TelemetryCommand) -> str:
    """Return the nonce of a client's reply; Node.js sends it in the field of the command."""
    which: Any = command.WhichOneof("command")
    return str(getattr(getattr(command, which), "nonce", "")) if which else ""
