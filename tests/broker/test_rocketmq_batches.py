"""A store with topics that RocketMQ stores in batches is refused unchanged; without them it
opens."""

import json
import shutil
from pathlib import Path

import pytest

from support import rocketmq_stores
from support.broker import running_broker
from support.broker_routes import BrokerRoutes


@pytest.mark.parametrize("known_by", ["its queue", "topics.json", "both"])
async def test_a_store_with_a_topic_in_batches_is_refused_and_nothing_is_touched(
    known_by: str, tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    rocketmq_stores.unpack("batches", tmp_path)
    if known_by == "topics.json":
        shutil.rmtree(tmp_path / "batchconsumequeue")
    if known_by == "its queue":
        forget_topic(tmp_path)
    before = rocketmq_stores.content(tmp_path)
    with pytest.raises(BaseExceptionGroup) as raised:
        async with running_broker(tmp_path, [nameserver.address], **rocketmq_stores.LAYOUT):
            pass
    said = repr(raised.value.exceptions)
    assert "queue.type = BatchCQ" in said
    assert "cannot read: inner. Nothing was changed" in said
    assert rocketmq_stores.content(tmp_path) == before


async def test_batches_of_a_topic_that_rocketmq_has_deleted_are_no_messages(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    rocketmq_stores.unpack("batches", tmp_path)
    shutil.rmtree(tmp_path / "batchconsumequeue")
    forget_topic(tmp_path)
    async with running_broker(tmp_path, [nameserver.address], **rocketmq_stores.LAYOUT) as broker:
        assert await broker.bodies("orders") == [b"plain"]
    assert not (tmp_path / "consumequeue" / "inner").exists()


def forget_topic(root: Path) -> None:
    file = root / "config" / "topics.json"
    content = json.loads(file.read_text())
    del content["topicConfigTable"]["inner"]
    file.write_text(json.dumps(content))
