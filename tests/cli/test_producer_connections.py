"""`rockoon producer connections`: programs of the SDK and clients of a gateway that send."""

import asyncio
from importlib import metadata
from typing import Any

import rockoon as sdk
from gateway.gateways import running_gateway
from gateway.wire_client import WireClient, message, producer_settings
from rockoon.admin.producers import merged
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as d
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb
from rockoon_proto.v1.broker_pb2 import Agent, AppendStreamState, ListAppendStreamsReply
from support.eventually import answered

VERSION = metadata.version("rockoon")
JAVA = "host@1@0@java"


async def test_producers_are_shown_with_what_they_are(rockoon: Any, cluster: Any) -> None:
    topic = cluster.new_topic("sent", queues_per_broker=1)
    other = cluster.new_topic("elsewhere", queues_per_broker=1)
    assert "No producer is connected" in rockoon("producer", "connections", topic).out

    async def told(*names: str) -> list[Any]:
        async def ask() -> Any:
            command = "producer", "connections", topic, "--json"
            return (await asyncio.to_thread(rockoon, *command)).json

        def known(found: Any) -> bool:
            return [each["client_id"] for each in found["producers"]] == [*names]

        found = await answered(ask, known)
        assert (found["left_out"], found["errors"]) == (0, {})
        return list(found["producers"])

    async with (
        sdk.connect(cluster.nameservers, client_id="app-1") as connected,
        running_gateway(cluster, name="gateway-x") as gateway,
        WireClient(
            gateway.address, JAVA, {"x-mq-language": "JAVA", "x-mq-client-version": "5.2.0"}
        ) as java,
    ):
        async with connected.producer() as producer:
            for queue in (await connected.admin.describe_topic(topic)).queues:
                await producer.send(topic, b"m", queue=queue.queue)
            await producer.send(other, b"m")
            (app,) = await told("app-1")
            assert app["brokers"] == ["broker-a", "broker-b"]
            assert (app["language"], app["version"]) == ("PYTHON", VERSION)
            assert app["address"].startswith("ipv4:127.0.0.1:")
            assert (app["gateway"], app["is_gateway"], app["topics"]) == (None, False, [topic])
            assert app["opened_ms_ago"] >= app["sent_ms_ago"] >= 0

            stream = java.telemetry()
            await stream.tell(producer_settings(topic))
            response = await java.send(message(topic, b"m"))
            assert response.status.code == d.Code.OK
            app, itself, client = await told("app-1", "gateway-x", JAVA)
            assert (itself["is_gateway"], itself["language"], itself["topics"]) == (
                True,
                None,
                [topic],
            )
            assert (client["language"], client["version"]) == ("JAVA", "5.2.0")
            assert (client["gateway"], client["topics"]) == ("gateway-x", [topic])
            shown = await asyncio.to_thread(rockoon, "producer", "connections", topic)
            rows = {words[0]: words for words in shown.words if words}
            assert rows["app-1"][:3] == ["app-1", "PYTHON", VERSION]
            assert rows["gateway-x"][4] == "itself"
            assert rows[JAVA][:5] == [JAVA, "JAVA", "5.2.0", client["address"], "gateway-x"]
            # A request without a topic returns all topics of each producer.
            command = "producer", "connections", "--json"
            every = (await asyncio.to_thread(rockoon, *command)).json["producers"]
            (all_of_app,) = [each for each in every if each["client_id"] == "app-1"]
            assert all_of_app["topics"] == sorted([topic, other])
            assert (await connected.admin.producers(other)).producers[0].client_id == "app-1"

            await java.call("NotifyClientTermination", pb.NotifyClientTerminationRequest())
            await told("app-1", "gateway-x")
        # The program has closed its producer.
        await told("gateway-x")
    await told()
    assert "does not exist" in await asyncio.to_thread(
        rockoon.fails, "producer", "connections", "nowhere"
    )


def test_programs_that_send_no_name_are_told_apart_by_their_addresses() -> None:
    named = Agent(client_id="app", language="PYTHON", version="1")
    streams = [
        AppendStreamState(address="ipv4:10.0.0.1:1", opened_ms_ago=5, topics=["a"]),
        AppendStreamState(address="ipv4:10.0.0.2:1", opened_ms_ago=6, topics=["a"]),
        AppendStreamState(
            agent=named, address="ipv4:10.0.0.3:1", opened_ms_ago=9, sent_ms_ago=4, topics=["b"]
        ),
        AppendStreamState(
            agent=named, address="ipv4:10.0.0.3:2", opened_ms_ago=7, sent_ms_ago=2, topics=["a"]
        ),
    ]
    replies = {"broker-a": ListAppendStreamsReply(streams=streams)}
    first, second, app = merged(replies)
    assert [first.address, second.address] == ["ipv4:10.0.0.1:1", "ipv4:10.0.0.2:1"]
    assert (first.client_id, first.sent_ms_ago) == ("", None)
    assert (app.client_id, app.topics) == ("app", ["a", "b"])
    assert (app.opened_ms_ago, app.sent_ms_ago) == (9, 2)
