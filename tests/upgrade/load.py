"""Clients of one version of the SDK, as a process: `python -m upgrade.load --help`.

Prints one line of JSON twice a second: the calls done by each client. When its standard input ends,
it stops, waits until each acknowledged message was received, and prints the result.
"""

import argparse
import asyncio
import itertools
import json
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import rockoon
from rockoon.errors import NotAcquired, RockoonError
from support.everyday_clients import EVERYDAY, ORDERED, PACE_SECONDS, EverydayClients

PATIENCE_SECONDS = 120.0
REPORT_SECONDS = 0.5
# Longer than each pause: an expired message would be received again.
VISIBLE_SECONDS = 300.0


class Load:
    """The everyday clients, a receiver, and clients of the gateway if there is one.

    Args:
        cluster: the connection.
        prefix: of the names of topics and groups.
        gateway: "host:port"; empty for none.
    """

    def __init__(self, cluster: rockoon.Cluster, prefix: str, gateway: str) -> None:
        self._cluster = cluster
        self._prefix = prefix
        self._gateway = gateway
        self.clients = EverydayClients(cluster, PATIENCE_SECONDS, prefix)
        self._received: set[bytes] = set()
        self._sent_by_gateway: set[bytes] = set()
        self._received_by_gateway: set[bytes] = set()

    async def run(self) -> None:
        await self.clients.make_topics("broker-a")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.clients.run())
            tasks.create_task(self._receive())
            if self._gateway:
                topic = f"{self._prefix}by-gateway"
                await self._cluster.admin.create_topic(topic, queues_per_broker=2)
                tasks.create_task(self._send_to_gateway(topic))
                tasks.create_task(self._receive_from_gateway(topic))

    def missing(self) -> dict[str, int]:
        counts = {
            **self.clients.missing(),
            "received": len(self.clients.acknowledged[self._prefix + EVERYDAY] - self._received),
            "gateway": len(self._sent_by_gateway - self._received_by_gateway),
        }
        return {name: count for name, count in counts.items() if count}

    def result(self) -> dict[str, Any]:
        order = self.clients.in_order.order
        topics = {self._prefix + ORDERED, self._prefix + EVERYDAY}
        return {
            "failures": self.clients.failures,
            "missing": self.missing(),
            "out of order": [key.decode() for key, each in order.items() if each != sorted(each)],
            "stored twice": [
                line
                for topic in topics
                for line in self.clients.reader_of(topic).twice(topic)
                if "stored twice" in line
            ],
            "acknowledged": sum(map(len, self.clients.acknowledged.values())),
            "clients": [str(client) for client in self.clients.clients],
        }

    async def _receive(self) -> None:
        client = self.clients.client("receive")
        topic, group = self._prefix + EVERYDAY, self._prefix + "received"
        consumer = self._cluster.simple_consumer(group, {topic: "*"}, consume_from="first")
        while not self.clients.stopping or self.missing():
            with client.call():
                receive = partial(consumer.receive, 32, visible_after=VISIBLE_SECONDS, wait=0.5)
                messages = await repeated(receive)
                self._received.update(bytes(each.body) for each in messages)
                # NotAcquired of a repeated call: the first one has acknowledged them.
                with suppress(NotAcquired):
                    await repeated(partial(consumer.ack, messages))

    async def _send_to_gateway(self, topic: str) -> None:
        from gateway.wire_client import WireClient, message

        client = self.clients.client("gateway send")
        async with WireClient(self._gateway, "sender@1@0@upgrade") as sender:
            for number in itertools.count():
                if self.clients.stopping:
                    return
                body = b"%d" % number
                with client.call():
                    sent = message(topic, body, f"{self._prefix}{number}")
                    await retried("SendMessage", partial(sender.send, sent))
                    self._sent_by_gateway.add(body)
                await asyncio.sleep(PACE_SECONDS)

    async def _receive_from_gateway(self, topic: str) -> None:
        from gateway.consumers import Consumer, handle
        from gateway.wire_client import WireClient

        client = self.clients.client("gateway receive")
        async with WireClient(self._gateway, "receiver@1@0@upgrade") as receiver:
            consumer = Consumer(receiver, f"{self._prefix}by-gateway", topic)
            while not self.clients.stopping or self.missing():
                with client.call():
                    frames = await retried(
                        "ReceiveMessage", lambda: consumer.frames(wait=1.0, invisible=60.0)
                    )
                    found = [each.message for each in frames if each.HasField("message")]
                    self._received_by_gateway.update(each.body for each in found)
                    if found:
                        acknowledge = partial(consumer.acknowledge, *map(handle, found))
                        await retried("AckMessage", acknowledge)


async def repeated(call: Callable[[], Awaitable[Any]]) -> Any:
    """Make a call of a receiver until it succeeds, as programs do: `receive` and `ack` report a
    service that is away.

    Raises:
        RockoonError: it failed for PATIENCE_SECONDS, or for another reason.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE_SECONDS
    while True:
        try:
            return await call()
        except RockoonError as failure:
            if not failure.retriable or loop.time() > deadline:
                raise
        await asyncio.sleep(PACE_SECONDS)


async def retried(name: str, call: Callable[[], Awaitable[Any]]) -> Any:
    """Make a call of the gateway until it is answered, as official clients do.

    Raises:
        TimedOut: it was refused or not answered for PATIENCE_SECONDS.
    """
    import grpc

    from rockoon.errors import TimedOut
    from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as d

    answered = (d.OK, d.MESSAGE_NOT_FOUND, d.MULTIPLE_RESULTS, d.INVALID_RECEIPT_HANDLE)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE_SECONDS
    while True:
        try:
            answer = await call()
            status = answer[0].status if isinstance(answer, list) else answer.status
            if status.code in answered:
                return answer
            last = str(status)
        except (grpc.RpcError, IndexError) as failure:
            last = repr(failure)
        if loop.time() > deadline:
            raise TimedOut(what=f"{name}: {last}", seconds=PATIENCE_SECONDS)
        await asyncio.sleep(PACE_SECONDS)


async def run(nameservers: list[str], prefix: str, gateway: str) -> None:
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    async with (
        rockoon.connect(nameservers, retry_seconds=PATIENCE_SECONDS) as cluster,
        asyncio.TaskGroup() as tasks,
    ):
        load = Load(cluster, prefix, gateway)
        running = tasks.create_task(load.run())
        while not running.done():
            done = {client.name: client.done for client in load.clients.clients}
            line = {"done": done, "failures": load.clients.failures}
            if ended.is_set():
                load.clients.stopping = True
                line["missing"] = load.missing()
            print(json.dumps(line), flush=True)
            await asyncio.wait([running], timeout=REPORT_SECONDS)
    print(json.dumps({"result": load.result()}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nameservers", required=True)
    parser.add_argument("--prefix", required=True, help="of topics and groups")
    parser.add_argument("--gateway", default="", help="host:port")
    arguments = parser.parse_args()
    asyncio.run(run(arguments.nameservers.split(","), arguments.prefix, arguments.gateway))


if __name__ == "__main__":
    main()
