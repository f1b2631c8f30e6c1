"""Nodes register their IP addresses: clients and services reach them while DNS has no answer."""

from pathlib import Path

import rockoon
from rockoon.local import LocalCluster
from rockoon.local.directory import choose_port
from support.names import named


async def test_nodes_are_reached_by_ip_address_while_dns_does_not_know_their_names(
    tmp_path: Path,
) -> None:
    broker, offset = choose_port(), choose_port()
    settings = {
        "broker": {
            "listen": f"127.0.0.1:{broker}",
            "advertise": f"broker.invalid:{broker}",
            "store_host": f"127.0.0.1:{broker}",
            "advertise_ip": "127.0.0.1",
        },
        "offset": {
            "listen": f"127.0.0.1:{offset}",
            "advertise": f"offset.invalid:{offset}",
            "advertise_ip": "127.0.0.1",
        },
    }
    with named() as names:
        names["broker.invalid"] = names["offset.invalid"] = []
        async with (
            LocalCluster(tmp_path, durable=False, settings=settings) as local,
            rockoon.connect(local.nameservers) as cluster,
        ):
            await cluster.admin.create_topic("orders", queues_per_broker=1)
            async with cluster.producer() as producer:
                await producer.send("orders", b"one")
            async with cluster.pull_consumer(
                "billing", consume_from=rockoon.ConsumeFrom.FIRST
            ) as consumer:
                await consumer.assign_all("orders")
                assert [message.body for message in await consumer.poll()] == [b"one"]
                await consumer.commit()
            # The offset service has asked the broker.
            (lag,) = (await cluster.admin.lag("billing")).queues
            assert (lag.queue.broker, lag.lag) == ("broker-a", 0)
