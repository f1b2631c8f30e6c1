"""A store and the progress of a RocketMQ broker: a group continues at its offsets."""

import asyncio
import time
from pathlib import Path

import rockoon
from rockoon.local import LocalCluster
from rockoon_format.names import retry_topic
from rockoon_format.properties import encode
from rockoon_format.record import Record
from rockoon_proto.v1.offset_pb2 import ROCKETMQ
from support.half_messages import BORN_HOST, SMALL, append, small_store

GROUP = "moved"


def left_by_rocketmq(root: Path) -> None:
    """Messages 0 to 3 of topic `orders`, and those that were sent to the group again."""
    now_ms = time.time_ns() // 1_000_000
    with small_store(root) as store:
        for number in range(4):
            for topic, body in (("orders", b"new %d"), (retry_topic(GROUP), b"again %d")):
                properties = {"RETRY_TOPIC": "orders", "UNIQ_KEY": f"{topic}-{number}"}
                record = Record(
                    topic=topic.encode(),
                    body=body % number,
                    properties=encode(properties),
                    born_host=BORN_HOST,
                )
                append(store, record, now_ms)


async def test_what_was_retried_before_the_move_does_not_come_again(tmp_path: Path) -> None:
    left_by_rocketmq(tmp_path / "broker-a")
    sizes = {name: SMALL[name] for name in ("commit_log_file_bytes", "consume_queue_file_entries")}
    progress = '{"offsetTable":{"orders@moved":{0:2},"%RETRY%moved@moved":{0:3}}}'
    handled: asyncio.Queue[bytes] = asyncio.Queue()

    async def handle(message: rockoon.Message) -> None:
        await handled.put(message.body)

    async with LocalCluster(tmp_path, single=True, settings={"broker": sizes}) as local:
        async with rockoon.connect(local.nameservers) as cluster:
            await cluster.admin.create_topic("orders", placements={"broker-a": 1})
            done = await cluster.admin.import_offsets(
                ROCKETMQ, progress.encode(), broker="broker-a"
            )
            assert list(done.skipped) == []
            async with cluster.push_consumer(GROUP, {"orders": "*"}, handle, consume_from="first"):
                async with asyncio.timeout(20):
                    first = sorted([await handled.get() for _ in range(3)])
                assert first == [b"again 3", b"new 2", b"new 3"]
        assert handled.empty()
