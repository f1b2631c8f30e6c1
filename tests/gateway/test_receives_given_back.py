"""Acquired messages that a receive does not deliver are free immediately, and do not count."""

import zlib
from collections.abc import Sequence
from typing import Any

import pytest

from rockoon.message import Batch
from rockoon.net.routes import TopicRoute
from rockoon.receiving.received import ReceiptHandle, ReceivedMessages, ReceivedRun
from rockoon_core.message_queue import MessageQueue
from rockoon_format.record import Record, encode_record
from rockoon_gateway.calls import GatewayCall
from rockoon_gateway.consuming.receiving import Receiving
from rockoon_gateway.consuming.settling import ReturnedMessages
from rockoon_gateway.groups import CachedGroups
from rockoon_gateway.routes import TopicRoutes
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as d
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb
from rockoon_proto.v1.nameserver_pb2 import GroupConfig

QUEUE = MessageQueue("orders", "broker-a", 3)
CALL = GatewayCall("client", "JAVA", "5", "peer", None, None)


class EveryTopic(TopicRoutes):
    """Every requested topic exists."""

    def __init__(self) -> None:
        pass

    async def route(self, name: str) -> TopicRoute:
        return TopicRoute(name, (), {}, 1, 1, 1, 6, {})


class EveryGroup(CachedGroups):
    """Every requested topic exists."""

    def __init__(self) -> None:
        pass

    async def plain(self, name: str) -> GroupConfig:
        return GroupConfig(name=name)


class Engine:
    """Has these messages, and records the returned ones."""

    def __init__(self, messages: ReceivedMessages) -> None:
        self.messages = messages
        self.given_back: list[ReceiptHandle] = []

    async def receive(self, *_: object, **__: object) -> ReceivedMessages:
        return self.messages

    async def change_visibility(
        self,
        _group: str,
        receipts: Sequence[ReceiptHandle],
        visible_after_ms: int,
        *,
        counted: bool = True,
        extend: bool = False,
    ) -> list[ReceiptHandle | None]:
        assert (visible_after_ms, counted, extend) == (0, False, False)
        self.given_back += receipts
        return list(receipts)


class Client:
    """Accepts all writes."""

    def __init__(self) -> None:
        self.data = b""
        self.is_told_all = False

    async def write_framed(self, data: bytes, *, last: bool = False) -> None:
        assert not self.is_told_all
        self.data += data
        self.is_told_all = last


def receiving(engine: Engine) -> tuple[Receiving, ReturnedMessages]:
    returned_messages = ReturnedMessages(engine)
    nobody: Any = None
    parts = EveryTopic(), EveryGroup(), nobody, nobody
    return Receiving(engine, *parts, returned_messages, lambda *_: None, nobody), returned_messages


REQUEST = pb.ReceiveMessageRequest(
    group=d.Resource(name="billing"),
    message_queue=d.MessageQueue(topic=d.Resource(name="orders")),
    batch_size=32,
    auto_renew=True,
)


async def test_of_a_receive_that_fails_as_no_one_foresaw_everything() -> None:
    batch: Any = "none"
    run = ReceivedRun(QUEUE, 4711, 1, 0, batch, range(5), range(5))
    engine = Engine(ReceivedMessages([run]))
    receives, returned_messages = receiving(engine)
    with pytest.raises(AttributeError):
        await receives.receive(REQUEST, CALL, Client())
    await returned_messages.flush()
    assert engine.given_back == [ReceiptHandle(QUEUE, 4711, each) for each in range(5)]


async def test_of_a_receive_of_more_than_fits_the_rest() -> None:
    packed = zlib.compress(bytes(5 << 20))
    frames = [
        encode_record(Record(topic=b"orders", body=packed, sys_flag=1, queue_offset=each))
        for each in range(5)
    ]
    batch = Batch(QUEUE, b"".join(frames), [len(frame) for frame in frames])
    engine = Engine(ReceivedMessages([ReceivedRun(QUEUE, 4711, 1, 0, batch, range(5), range(5))]))
    receives, returned_messages = receiving(engine)
    client = Client()
    await receives.receive(REQUEST, CALL, client)
    await returned_messages.flush()
    assert engine.given_back == [ReceiptHandle(QUEUE, 4711, each) for each in (2, 3, 4)]
    assert len(client.data) >> 20 == 10
