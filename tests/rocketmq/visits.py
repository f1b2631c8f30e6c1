"""A store that is used by RocketMQ and Rockoon in turns, and the reads of both."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rockoon.sync
from rocketmq import real
from rockoon.local import LocalCluster
from rockoon.sync import Cluster
from rockoon_format.batch import scan
from rockoon_format.names import TRANSACTION_OP_TOPIC
from rockoon_format.record import Record, decode_record
from rockoon_proto.v1.offset_pb2 import ExportFormat
from support.whole_topics import every_message

# Properties that RocketMQ's client adds to the stored ones; and the checksum, which it shows.
_ADDED = ("MIN_OFFSET", "MAX_OFFSET", "__CRC32#")

Seen = tuple[int, int, bytes, tuple[tuple[str, str], ...]]
"""A message as both sides see it: queue, offset, body, properties."""


@dataclass(frozen=True)
class Visitor:
    """Rockoon on the store."""

    local: LocalCluster
    connection: Cluster

    def topic(self, name: str, queues: int) -> None:
        admin = self.connection.admin
        placements = {real.BROKER: queues}
        self.connection.call(admin.create_topic(name, placements=placements, if_absent=True))

    def seen(self, topic: str) -> list[Seen]:
        """Return all messages of a topic, by queue and offset."""
        return sorted(
            (
                each.queue.queue_id,
                each.queue_offset,
                each.body,
                tuple(sorted(each.properties.items())),
            )
            for each in every_message(self.connection, topic)
        )

    def waiting(self) -> set[str]:
        """Return ids of the transactions that wait for their end."""
        (found,) = self.connection.call(self.connection.admin.transactions())
        assert found.reply is not None
        return {each.transaction_id for each in found.reply.transactions}

    def delayed(self, topic: str) -> int:
        """Return the number of delayed messages of a topic."""
        found = self.connection.call(self.connection.admin.delayed.list(1024)).messages
        return sum(each.queue.topic == topic for each in found)

    def taken_over(self, content: bytes) -> set[tuple[str, int, int]]:
        """Import a consumerOffset.json: return topic, queue and offset of all imported progress."""
        form = ExportFormat.ROCKETMQ
        work = self.connection.admin.import_offsets(form, content, broker=real.BROKER)
        return {
            (each.queue.topic, each.queue.queue_id, each.to_offset)
            for each in self.connection.call(work).imported
        }

    def told(self) -> int:
        """Return the number of half messages that op records name, as RocketMQ's checks find
        them."""
        store = self.local.directory / real.BROKER
        topic = TRANSACTION_OP_TOPIC.encode()
        return sum(
            record.body.count(b",")
            for path in (store / "commitlog").glob("0*")
            for record in records_of(path.read_bytes())
            if record.topic == topic
        )


def records_of(log: bytes) -> Iterator[Record]:
    for offset in scan(log, 0, len(log)).offsets.tolist():
        yield decode_record(log, offset)


@contextmanager
def rockoon_on(store: Path, **settings: Any) -> Iterator[Visitor]:
    """Run a cluster whose broker has the store; it stops in order at the end of the block.

    Args:
        store: `DIRECTORY/broker-a`; the cluster's directory is DIRECTORY.
        settings: the broker's.
    """
    values = {
        "commit_log_file_bytes": real.LOG_FILE_BYTES,
        "consume_queue_file_entries": real.QUEUE_FILE_ENTRIES,
        "index_slots": 1000,
        "index_units": 4000,
        "transaction_checks_max": 1000,
        **settings,
    }
    with (
        LocalCluster(store.parent, settings={"broker": values}) as local,
        rockoon.sync.connect(local.nameservers) as connection,
    ):
        yield Visitor(local, connection)


def seen_by_rocketmq(broker: real.RocketMq, topic: str) -> list[Seen]:
    """Return all messages of a topic as RocketMQ's own client gets them, by queue and offset."""
    return sorted(
        (
            each["queue"],
            each["offset"],
            each["body"],
            tuple(sorted((n, v) for n, v in each["properties"].items() if n not in _ADDED)),
        )
        for each in broker.read(topic)
    )
