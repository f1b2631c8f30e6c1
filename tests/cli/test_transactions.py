"""`rockoon transactions list`: open transactions, in a table and in JSON."""

import asyncio
from typing import Any

import rockoon as sdk
from rockoon.transactions.transaction import Resolution
from rockoon_proto.v1.broker_pb2 import ROLLBACK, EndTransactionRequest


def never(_: sdk.Message) -> Resolution:
    return Resolution.UNKNOWN


async def two_of_three(nameservers: list[str], topic: str) -> list[sdk.Transaction]:
    async with (
        sdk.connect(nameservers) as cluster,
        cluster.transactional_producer("payers", check=never) as producer,
    ):
        left = [await producer.begin(topic, b"x") for _ in range(2)]
        async with producer.transaction(topic, b"ended"):
            pass
        return left


def test_transactions_are_listed_until_they_have_ended(
    rockoon: Any, cluster: Any, topic: str
) -> None:
    assert rockoon("transactions", "list").out == "There are no open transactions.\n"
    left = asyncio.run(two_of_three(cluster.nameservers, topic))
    listed = rockoon("transactions", "list").words
    rows = [words for words in listed if any(topic in word for word in words)]
    assert {words[0] for words in rows} == {each.message_id for each in left}
    assert {words[1] for words in rows} == {str(each.queue) for each in left}
    assert {words[2] for words in rows} == {"payers"}
    said = rockoon("transactions", "list", "--json").json
    assert sum(each["pending"] for each in said) == 2
    assert {
        pending["id"]: pending["topic"] for each in said for pending in each["transactions"]
    } == {each.message_id: topic for each in left}
    asyncio.run(roll_back(cluster.nameservers))
    assert rockoon("transactions", "list").out == "There are no open transactions.\n"


async def roll_back(nameservers: list[str]) -> None:
    """End the remaining ones: other tests see the same cluster."""
    async with sdk.connect(nameservers) as cluster:
        for each in await cluster.admin.transactions():
            assert each.reply is not None
            for pending in each.reply.transactions:
                await cluster.broker(each.broker).EndTransaction(
                    EndTransactionRequest(
                        producer_group=pending.producer_group,
                        queue_offset=pending.queue_offset,
                        physical_offset=pending.physical_offset,
                        resolution=ROLLBACK,
                    )
                )
