"""Reads of assigned queues, of topics by a regular expression, and from times by queue. Without
Spark.
"""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from rockoon.testing.disposable import DisposableCluster
from rockoon_broker.store.settings import Flush
from rockoon_spark.source.data_source import RockoonDataSource
from rockoon_spark.source.option_table import OptionError
from support.seeds import seeds
from support.store_directory import NOW_MS, Owner, settings
from support.whole_topics import every_message

QUEUES = 3
Key = tuple[str, int, int]
"""Topic, queue id and queue offset."""


def read(**options: object) -> list[Key]:
    given = {name: str(value) for name, value in options.items()}
    source = RockoonDataSource({"columns": "topic,queue,queue_offset", **given})
    reader = source.reader(source.schema())
    return sorted(
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Message n of topics T0, T1, T2 is stored at NOW_MS + n seconds."""
    root = tmp_path_factory.mktemp("chosen") / "broker-a"
    owner = Owner(settings(root, commit_log_file_bytes=1 << 20, flush=Flush.ASYNC))
    for n in range(180):
        owner.clock.time_ms = NOW_MS + 1000 * n
        owner.append(f"T{n % 3}", n // 3 % QUEUES, [b"%d" % n])
    owner.store.close()
    return root


def time_of(key: Key) -> int:
    """The store time of a message of `store`, epoch milliseconds."""
    topic, queue, offset = key
    return NOW_MS + 1000 * ((offset * QUEUES + queue) * 3 + int(topic[1:]))


@pytest.mark.parametrize("seed", seeds(1))
def test_a_store_directory_has_the_rows_of_the_chosen_queues_and_times(
    store: Path, seed: int
) -> None:
    chance = random.Random(seed)
    every = [(f"T{t}", q, o) for t in range(3) for q in range(QUEUES) for o in range(20)]
    assert read(path=store) == every
    assert read(path=store, subscribePattern="T[02]|other") == [
        key for key in every if key[0] in ("T0", "T2")
    ]
    for _ in range(10):
        assigned = {
            f"T{t}": chance.sample(range(QUEUES), chance.randint(1, 3))
            for t in chance.sample(range(3), chance.randint(1, 3))
        }
        first, last = sorted(NOW_MS + 1000 * chance.randrange(180) for _ in range(2))
        topic = chance.choice(list(assigned))
        queue = chance.choice(assigned[topic])
        bounds: dict[str, Any] = {
            "startingOffsetsByTimestamp": {topic: {str(queue): first}},
            "endingOffsetsByTimestamp": {topic: {f"broker-a:{queue}": last + 1}},
        }
        chosen = {name: bounds[name] for name in bounds if chance.random() < 0.7}
        expected = [key for key in every if key[1] in assigned.get(key[0], ())]
        for key in every:
            is_early = "startingOffsetsByTimestamp" in chosen and time_of(key) < first
            is_late = "endingOffsetsByTimestamp" in chosen and time_of(key) > last
            if key in expected and key[:2] == (topic, queue) and (is_early or is_late):
                expected.remove(key)
        texts = {name: json.dumps(value) for name, value in chosen.items()}
        assert read(path=store, assign=json.dumps(assigned), **texts) == expected, (assigned, texts)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"topics": "T1,t22"}, "option topics: topic 't22' does not exist; did you mean 'T2'?"),
        ({"assign": '{"T01": [0]}'}, "option assign: topic 'T01' does not exist; did you mean 'T"),
        (
            {"assign": '{"T1": [7]}'},
            "option assign: topic 'T1' has no queue '7', .*; its queues: 0, 1, 2",
        ),
        (
            {"startingOffsetsByTimestamp": '{"T1": {"broker-a:7": 1700000000000}}'},
            "topic 'T1' has no queue 'broker-a:7', .*; its queues: broker-a:0, broker-a:1",
        ),
    ],
)
def test_a_topic_or_queue_that_does_not_exist_is_refused_with_the_nearest_name(
    store: Path, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(OptionError, match=sentence):
        read(path=store, **options)


@pytest.fixture(scope="module")
def topics(cluster: DisposableCluster) -> list[str]:
    """Two topics with ten messages in each queue."""
    names = [cluster.new_topic(f"chosen-{n}", queues_per_broker=2) for n in range(2)]
    with cluster.connect() as connection:
        for name in names:
            for queue in connection.queues(name):
                connection.send_many(name, [b"%d" % n for n in range(10)], queue=queue)
    return names


def test_a_live_cluster_has_the_rows_of_the_chosen_queues_and_times(
    cluster: DisposableCluster, topics: list[str]
) -> None:
    endpoint = ",".join(cluster.nameservers)
    one, other = topics
    chosen = read(endpoint=endpoint, assign=json.dumps({one: [0], other: ["broker-b:1"]}))
    assert chosen == sorted(
        [(one, 0, n) for n in range(10)] * 2 + [(other, 1, n) for n in range(10)]
    )
    pattern = one.replace("chosen-0", "chosen-[0-9]")
    assert read(endpoint=endpoint, subscribePattern=pattern) == read(endpoint=endpoint, topics=one)
    with cluster.connect() as connection:
        times = {
            (each.queue.broker, each.queue.queue_id, each.queue_offset): each.store_timestamp_ms
            for each in every_message(connection, one)
        }
    middle = sorted(times.values())[len(times) // 2]
    by_time = read(
        endpoint=endpoint,
        topics=one,
        startingOffsetsByTimestamp=json.dumps({one: {"0": middle, "broker-b:1": middle + 1}}),
    )
    expected = [
        (one, queue, offset)
        for (broker, queue, offset), time_ms in times.items()
        if (queue != 0 or time_ms >= middle)
        and ((broker, queue) != ("broker-b", 1) or time_ms > middle)
    ]
    assert by_time == sorted(expected)
    with pytest.raises(OptionError, match=f"does not exist; did you mean '{one}'"):
        read(endpoint=endpoint, topics=one[:-1])
