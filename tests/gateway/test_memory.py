"""The memory of clients that have left is released."""

import asyncio
import gc
from collections import Counter

import rockoon
from gateway.consumers import Consumer, handle, topic_with
from gateway.gateways import RunningGateway
from gateway.wire_client import WireClient, consumer_settings
from rockoon_gateway.calls import GatewayCall
from rockoon_gateway.clients.presence import GatewayClient, Outbox
from rockoon_gateway.clients.reports import Goodbye
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as d
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb
from rockoon_proto.v1.nameserver_pb2 import GroupConfig
from rockoon_rpc.server_call import ServerCall
from rockoon_rpc.server_connection import ServerConnection

COUNT = 100
# Objects of the gateway alone: the test's clients are in the same process.
KINDS = (GatewayClient, Outbox, GatewayCall, Goodbye, ServerConnection, ServerCall, GroupConfig)
LOOK_SECONDS = 0.2
RETURN_SECONDS_MAX = 60.0


def living() -> Counter[str]:
    """Return the number of existing objects of each kind."""
    gc.collect()
    return Counter(type(each).__name__ for each in gc.get_objects() if isinstance(each, KINDS))


async def receive_one(address: str, number: int, topic: str) -> None:
    """A push consumer connects with a new group, receives, acknowledges and leaves."""
    group = f"leavers-{number}"
    async with WireClient(address, f"leaver-{number}") as client:
        stream = client.telemetry()
        await stream.tell(consumer_settings(group, topic))
        await client.heartbeat(d.PUSH_CONSUMER, group)
        consumer = Consumer(client, group, topic)
        messages = await consumer.receive_all(1, batch_size=1, renewed=True)
        # Every second consumer leaves without an acknowledgement.
        if number % 2:
            await consumer.acknowledge(*map(handle, messages))
        goodbye = pb.NotifyClientTerminationRequest()
        assert (await client.call("NotifyClientTermination", goodbye)).status.code == d.OK
        await stream.close()


async def test_nothing_of_a_client_is_kept_when_it_has_left(
    gateway: RunningGateway, cluster: rockoon.Cluster
) -> None:
    topic = await topic_with(cluster, "left", [b"0"])
    await receive_one(gateway.address, COUNT, topic)
    async with asyncio.timeout(RETURN_SECONDS_MAX):
        while (before := living()) != living() or before["Client"]:
            await asyncio.sleep(LOOK_SECONDS)
        async with asyncio.TaskGroup() as tasks:
            for number in range(COUNT):
                tasks.create_task(receive_one(gateway.address, number, topic))
        while left := living() - before:
            print(f"not yet free: {dict(left)}")
            await asyncio.sleep(LOOK_SECONDS)
