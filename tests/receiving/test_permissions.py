"""Receives with an access key with few permissions."""

from receiving.orders import Orders, failure_of, receive

import rockoon
from rockoon.admin.access_keys import Permission
from rockoon.errors import NotPermitted
from rockoon.local import LocalCluster


async def test_who_may_read_a_topic_for_a_group_receives_and_nobody_else() -> None:
    async with (
        LocalCluster(single=True, access=True) as local,
        rockoon.connect(local.nameservers, access=local.access) as operator,
    ):
        for topic in ("orders", "secrets"):
            await operator.admin.create_topic(topic)
            await Orders(operator, topic).send([1])
        reads = ["topic:orders=read", "group:group-of-orders=read", "group:group-of-secrets=read"]
        key = await operator.admin.access_keys.create("reader", map(Permission.parse, reads))
        async with rockoon.connect(local.nameservers, access=key) as cluster:
            orders = Orders(cluster, "orders")
            # The two others fail together with permitted requests.
            foreign = cluster.simple_consumer("others", {"orders": "*"})
            secrets = Orders(cluster, "secrets").consumer()
            assert isinstance(await failure_of(foreign.receive()), NotPermitted)
            assert isinstance(await failure_of(secrets.receive()), NotPermitted)
            async with orders.consumer() as consumer:
                (message,) = await receive(consumer, 1)
                await consumer.ack(message)
                await orders.all_settled()
                await operator.admin.access_keys.revoke("reader", [Permission.parse(reads[1])])
                await Orders(operator, "orders").send([2])
                failure = await failure_of(consumer.receive(wait=600))
                assert isinstance(failure, NotPermitted)
