"""Groups that clients of a gateway and simple consumers read, in answers of the commands."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from importlib import metadata
from typing import Any

import pytest

import rockoon as sdk
from gateway.consumers import Consumer, handle
from gateway.gateways import running_gateway
from gateway.wire_client import WireClient
from rockoon.cli.lag import readers_text
from rockoon.cli.offsets import moved_text
from rockoon.cli.output import local_time
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as d
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code
from rockoon_proto.v1.offset_pb2 import Progress
from support.eventually import answered

JAVA, GO, APP = "host@1@0@java", "host@2@0@go", "app-1"
VERSION = metadata.version("rockoon")
AT_MS = 1_700_000_000_000
LOGGER = "rockoon.receiving.receive_queue"


class Readers:
    """A client of each kind that reads a group.

    Args:
        rockoon: runs a command.
        cluster: has a topic of the test's own and a group that starts at its first message.
        name: begins the names of both.
    """

    def __init__(self, rockoon: Any, cluster: Any, name: str) -> None:
        self._rockoon = rockoon
        self._cluster = cluster
        self._stack = AsyncExitStack()
        self.topic = cluster.new_topic(name, queues_per_broker=1)
        self.group = f"{self.topic}-billing"

    async def __aenter__(self) -> "Readers":
        await self.command("group", "create", self.group, "--from", "first")
        enter = self._stack.enter_async_context
        self.gateway = await enter(running_gateway(self._cluster, name="gateway-x"))
        self.connected = await enter(sdk.connect(self._cluster.nameservers))
        self.java = await self.client(JAVA, "JAVA", "5.2.0")
        self.go = await self.client(GO, "GOLANG", "5.1.4")
        wanted = {self.topic: "*"}
        self.app = await enter(self.connected.simple_consumer(self.group, wanted, receiver=APP))
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await self._stack.aclose()
        # Tests of all groups' lag compare groups with unread messages.
        await self.command("group", "delete", self.group, "--yes")

    async def client(self, client_id: str, language: str, version: str) -> Consumer:
        headers = {"x-mq-language": language, "x-mq-client-version": version}
        client = WireClient(self.gateway.address, client_id, headers)
        return Consumer(await self._stack.enter_async_context(client), self.group, self.topic)

    async def send(self, count: int) -> None:
        """Send messages to the queue on broker-a."""
        queues = (await self.connected.admin.describe_topic(self.topic)).queues
        async with self.connected.producer() as producer:
            await producer.send_many(self.topic, [b"m"] * count, queue=queues[0].queue)

    async def command(self, *arguments: str) -> Any:
        return await asyncio.to_thread(self._rockoon, *arguments)

    async def rows(self, *arguments: str) -> dict[str, list[str]]:
        """Words of the lines of a command, by the first word."""
        return {words[0]: words for words in (await self.command(*arguments)).words if words}

    async def told(self, until: Callable[[Any], bool], *arguments: str) -> Any:
        """JSON of a command, as soon as it is true: gateways report clients once a second."""

        async def ask() -> Any:
            return (await self.command(*arguments, "--json")).json

        return await answered(ask, until)


async def test_clients_are_shown_with_what_they_hold(rockoon: Any, cluster: Any) -> None:
    async with Readers(rockoon, cluster, "shown") as readers:
        await readers.send(4)
        await readers.java.receive_all(1, batch_size=1, renewed=True)
        await readers.go.receive_all(2, batch_size=2, invisible=600.0)
        (held,) = await readers.app.receive(max_messages=1, visible_after=600.0)

        def all_known(told: Any) -> bool:
            found = [(each["client_id"], each["gateway"]) for each in told["clients"]]
            return found == [(APP, None), (JAVA, "gateway-x"), (GO, "gateway-x")]

        for verb in ("members", "describe"):
            told = await readers.told(all_known, "group", verb, readers.group)
            app, java, go = told["clients"]
            assert java["address"].startswith("ipv4:127.0.0.1:")
            assert (java["language"], java["version"], java["messages"]) == ("JAVA", "5.2.0", 1)
            assert (go["language"], go["version"], go["messages"]) == ("GOLANG", "5.1.4", 2)
            assert (app["language"], app["version"], app["messages"]) == ("PYTHON", VERSION, 1)
            assert app["address"].startswith("ipv4:127.0.0.1:")
            assert (go["queues"], go["attempt_max"]) == (1, 1)
            assert app["subscriptions"] == {readers.topic: "*"}
            shown = await readers.rows("group", verb, readers.group)
            assert shown[JAVA][:6] == [JAVA, "JAVA", "5.2.0", java["address"], "gateway-x", "1"]
            assert shown[GO][:6] == [GO, "GOLANG", "5.1.4", go["address"], "gateway-x", "2"]
            assert shown[APP][:6] == [APP, "PYTHON", VERSION, app["address"], "-", "1"]
            assert shown[APP][-2:] == [f"{readers.topic}:", "*"]
            assert "no members" not in (await readers.command("group", verb, readers.group)).out

        clients = await readers.connected.admin.list_clients(readers.group)
        assert [(each.client_id, each.is_at_gateway) for each in clients] == [
            (APP, False),
            (JAVA, True),
            (GO, True),
        ]
        shown = (await readers.command("lag", readers.group)).out.splitlines()
        assert "read by 3 clients" in shown
        lag = (await readers.command("lag", readers.group, "--json")).json
        assert (lag["members"], lag["receivers"]) == (0, 3)
        # Of the overview, the last column.
        assert (await readers.rows("lag", "--limit", "1000"))[readers.group][-1] == "3"
        overview = (await readers.command("lag", "--limit", "1000", "--json")).json["groups"]
        assert [each["receivers"] for each in overview if each["group"] == readers.group] == [3]
        await readers.app.ack(held)


async def test_why_names_the_last_acknowledgement(rockoon: Any, cluster: Any) -> None:
    async with Readers(rockoon, cluster, "explained") as readers:
        await readers.send(6)

        async def why() -> tuple[str, Any]:
            arguments = "offsets", "why", readers.group, readers.topic
            (story,) = [
                each["progress"]
                for each in (await readers.command(*arguments, "--json")).json["queues"]
                if each["broker"] == "broker-a"
            ]
            lines = (await readers.command(*arguments)).out.splitlines()
            return next(each for each in lines if each.startswith("  now")), story

        async def explained(offset: int, client: str) -> None:
            line, story = await why()
            assert story["acknowledged_by"] == client
            assert story["committed_offset"] == offset
            at = local_time(story["acknowledged_at_ms"])
            epoch = story["epoch"]
            said = f"client {client} acknowledged last, on {at}"
            assert line == f"  now     {offset}; {said}, epoch {epoch}"

        (first, second) = await readers.java.receive_all(2, batch_size=2, invisible=600.0)
        line, story = await why()
        unmoved = "0, the start offset: nothing has been committed since"
        assert line == f"  now     {unmoved}, epoch {story['epoch']}"
        # Above the committed offset.
        assert (await readers.java.acknowledge(handle(second))).status.code == Code.OK
        await explained(0, JAVA)
        # By another client than the one that received it.
        theirs = Consumer(readers.go.client, readers.group, readers.topic)
        assert (await theirs.acknowledge(handle(first))).status.code == Code.OK
        await explained(2, GO)
        await asyncio.to_thread(cluster.stop, "offset")
        await asyncio.to_thread(cluster.start, "offset")
        await explained(2, GO)
        (third, *_) = await readers.app.receive(max_messages=1)
        await readers.app.ack(third)
        await explained(3, APP)
        (fourth,) = await readers.java.receive_all(1, batch_size=1, renewed=True)
        assert (await readers.java.forward(handle(fourth))).status.code == Code.OK
        await explained(4, JAVA)
        # A reset replaces the progress.
        reset = "offsets", "reset", readers.group, readers.topic, "--to-offset", "1", "--yes"
        await readers.command(*reset)
        line, story = await why()
        assert (story["acknowledged_by"], story["acknowledged_at_ms"]) == (None, None)
        assert story["start_reason"] == "RESET"
        assert "acknowledged" not in line


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        # The journals of former versions have no holders.
        (
            Progress(offset=3, stored_at_ms=AT_MS, acknowledged_at_ms=AT_MS),
            f"; receivers acknowledged, last on {local_time(AT_MS)}; the last client is not known",
        ),
        # Their snapshots have no acknowledgement.
        (
            Progress(offset=3, start_offset=2, stored_at_ms=AT_MS),
            f", stored on {local_time(AT_MS)}; the client is not known",
        ),
        (
            Progress(offset=3, start_offset=3, stored_at_ms=AT_MS),
            ", the start offset: nothing has been committed since",
        ),
        (
            Progress(offset=3, stored_at_ms=AT_MS, committer="pod-1"),
            f" committed by pod-1 on {local_time(AT_MS)}",
        ),
        (
            Progress(offset=3, stored_at_ms=AT_MS, committer="pod-1", acknowledged_by="app"),
            f"; client app acknowledged last, on {local_time(AT_MS)}",
        ),
    ],
)
def test_progress_that_moved_is_never_called_unmoved(progress: Progress, text: str) -> None:
    assert moved_text(progress) == text


@pytest.mark.parametrize(
    ("members", "receivers", "text"),
    [
        (0, 0, "no readers"),
        (1, 0, "read by 1 member"),
        (0, 4, "read by 4 clients"),
        (2, 1, "read by 2 members and 1 client"),
    ],
)
def test_lag_counts_readers(members: int, receivers: int, text: str) -> None:
    assert readers_text(members, receivers) == text


async def test_clients_with_different_filters_are_shown_and_warned_about(
    rockoon: Any, cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with Readers(rockoon, cluster, "filters") as readers:
        for consumer, tag in ((readers.java, "TagA"), (readers.go, "TagB")):
            expression = d.FilterExpression(type=d.TAG, expression=tag)
            assert await consumer.receive(expression=expression, wait=0) == []
        mark = (
            f"readers of topic {readers.topic} have different filters: 'TagA' ({JAVA}), "
            f"'TagB' ({GO}). A message that one filter excludes is settled for the whole group, "
            "so the other readers do not get it"
        )

        def all_known(told: Any) -> bool:
            return {each["gateway"] for each in told["clients"]} == {"gateway-x"}

        for verb in ("members", "describe"):
            told = await readers.told(all_known, "group", verb, readers.group)
            assert [each["subscriptions"] for each in told["clients"]] == [
                {readers.topic: "TagA"},
                {readers.topic: "TagB"},
            ]
            assert told["contradictions"] == [mark]
            shown = await readers.rows("group", verb, readers.group)
            assert shown[JAVA][-2:] == [f"{readers.topic}:", "TagA"]
            assert shown[GO][-2:] == [f"{readers.topic}:", "TagB"]
            said = (await readers.command("group", verb, readers.group)).out.splitlines()
            assert f"! {mark}" in said
        # In the log of the gateway.
        warned = [each.getMessage() for each in caplog.records if each.name == LOGGER]
        named = f"group {readers.group}: readers of topic {readers.topic} have different filters"
        assert any(each.startswith(f"{named}: 'TagA', 'TagB'.") for each in warned)


async def test_a_client_that_said_goodbye_is_no_reader(rockoon: Any, cluster: Any) -> None:
    async with Readers(rockoon, cluster, "left") as readers:
        for consumer in (readers.java, readers.go):
            await consumer.receive(wait=0)

        def known(*names: str) -> Callable[[Any], bool]:
            return lambda told: [each["client_id"] for each in told["clients"]] == [*names]

        await readers.told(known(JAVA, GO), "group", "members", readers.group)
        goodbye = pb.NotifyClientTerminationRequest(group=d.Resource(name=readers.group))
        await readers.java.client.call("NotifyClientTermination", goodbye)
        await readers.told(known(GO), "group", "members", readers.group)
