"""Refuses stores with topics in a format that only RocketMQ can read.

In a topic with the attribute queue.type = BatchCQ, each batch is one record with many messages, and
its queues are in `batchconsumequeue`. Read as ordinary records, each batch would be one message
with a wrong offset; and a `consumequeue` of such a topic keeps RocketMQ from starting.
Source: BatchConsumeQueue, ConsumeQueueStore#queueTypeShouldBe.
"""

from pathlib import Path

from rockoon_broker.store.errors import StoreLayoutError
from rockoon_broker.topics.topic_file import TopicFile

BATCH_QUEUES_DIRECTORY = "batchconsumequeue"


def refuse_batch_queues(root: Path, topics: TopicFile) -> None:
    """Refuse a store with topics whose queues RocketMQ stores in batches; changes nothing.

    Args:
        root: the store directory; need not exist.
        topics: its topic file.

    Raises:
        StoreLayoutError: there are some, named in the message; or the file cannot be read.
    """
    directory = root / BATCH_QUEUES_DIRECTORY
    found = {path.name for path in directory.iterdir()} if directory.is_dir() else set()
    found |= topics.left_in_batches()
    if found:
        names = ", ".join(sorted(found))
        raise StoreLayoutError(
            f"{root} has topics that RocketMQ keeps in batches (queue.type = BatchCQ), which this "
            f"broker cannot read: {names}. Nothing was changed. Send their messages to other "
            "topics with RocketMQ and delete these there"
        )
