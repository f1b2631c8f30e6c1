"""Stores with the starts of epochs, as replicas of a log with copies have them."""

import random
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rockoon_format.batch import encode_batch
from rockoon_format.log_marks import LOG_TOPIC
from rockoon_spark.index.target import index_paths
from rockoon_spark.jobs.index import build_index, verify_index
from rockoon_spark.jobs.rebuild import rebuild_queues
from support.compacting import RETENTION_MS, Compacting, compare, place, run
from support.key_index import SHAPE, keyed
from support.replicas import Replica, opened
from support.seeds import seeds
from support.store_directory import BORN_HOST, NOW_MS, batch_of, crashed_copy

ENTRIES = 10
SPLIT_BYTES = 5000


def a_follower(root: Path) -> Counter[tuple[str, str, int]]:
    """Write the store of a follower that had several leaders, and whose log was truncated.

    Returns:
        Its messages, by topic, body and queue offset.
    """
    sent: Counter[tuple[str, str, int]] = Counter()
    with opened(root.with_name("leader")) as leader, opened(root) as follower:
        for epoch in (1, 2, 5):
            leader.open_epoch(epoch)
            for number in range(20):
                topic, body = "TU"[number % 2], b"%d of epoch %d" % (number, epoch)
                frames, lengths = encode_batch(
                    topic.encode(),
                    0,
                    [body + bytes(300)],
                    [keyed(keys=f"k{number}")],
                    NOW_MS,
                    BORN_HOST,
                    room=True,
                )
                appended = leader.store.append(batch_of(topic, 0, frames, lengths), NOW_MS)
                sent[topic, body.decode(), appended.first_queue_offset] += 1
        follower.copy_from(leader)
        kept = follower.store.appended_end
        follower.open_epoch(6)
        follower.append("T", 0, [b"of this copy alone"])
        for owner in (leader, follower):
            owner.store.confirm(kept)
            owner.sync()
        follower.store.close_to_truncate(kept)
    again = Replica(root)
    again.store.confirm(kept)
    again.sync()
    again.store.close()
    return sent


def tree(root: Path) -> dict[str, bytes]:
    files = [path for path in root.rglob("*") if path.is_file()]
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def test_a_follower_s_store_is_a_dataframe_and_its_queues_and_index_are_made_of_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    root = tmp_path / "broker-a"
    sent = a_follower(root)
    frame = spark.read.format("rockoon").options(path=str(root), splitBytes=SPLIT_BYTES).load()
    rows = frame.select("topic", "body", "queue_offset").collect()
    read = Counter(
        (row.topic, row.body.rstrip(b"\0").decode(), row.queue_offset)
        for row in rows
        if row.topic != LOG_TOPIC
    )
    assert read == sent
    before = tree(root / "consumequeue")
    assert any(path.startswith(LOG_TOPIC) for path in before)
    rebuild_queues(
        spark, str(root), tmp_path / "rebuilt", file_entries=ENTRIES, split_bytes=SPLIT_BYTES
    )
    assert tree(tmp_path / "rebuilt") == before
    index = tmp_path / "index"
    build_index(spark, str(root), index, slots=SHAPE.slots, units=SHAPE.units, sealed_only=False)
    assert verify_index(spark, str(root), index) == []
    assert index_paths(index)


@pytest.mark.parametrize("seed", seeds(2))
def test_what_compaction_leaves_of_a_log_is_the_same_whatever_its_epochs(
    tmp_path: Path, seed: int
) -> None:
    choose = random.Random(seed)
    root = tmp_path / "store"
    owner = Compacting(root)
    epoch = 0
    for number in (1, 2):
        for _ in range(3):
            epoch += choose.randrange(1, 4)
            owner.store.open_epoch(epoch, "a", owner.clock.time_ms)
            owner.send_random(choose, choose.randrange(60))
        owner.clock.time_ms += RETENTION_MS
        copy, now_ms = crashed_copy(root, tmp_path / f"before-{number}"), owner.clock.time_ms
        report = run(place(root, now_ms), retries=0)
        owner.take_over(report.generation)
        compare(root, copy, report.generation, now_ms)
    owner.store.close()
