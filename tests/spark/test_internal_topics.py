"""Internal topics of the brokers, read only on request. Without Spark."""

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

from rockoon_broker.store.settings import Flush
from rockoon_spark.commands.arguments import parser
from rockoon_spark.export.rows import ExportError, TopicChoice
from rockoon_spark.export.target import ExportManifest, ExportTarget
from rockoon_spark.jobs.export import _check_topics
from rockoon_spark.records.selection import Selection
from rockoon_spark.source.log_reader import LogReader
from rockoon_spark.source.option_table import OptionError
from rockoon_spark.source.options import SourceOptions
from rockoon_spark.stream.cluster import StreamCluster
from rockoon_spark.stream.options import StreamOptions
from support.fake_cluster import FakeCluster
from support.store_directory import Owner, settings

ENDPOINT = {"endpoint": "127.0.0.1:9876"}
INTERNAL = ["SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC", "TBW102"]
TOPICS = ["orders", "%RETRY%billing", "%DLQ%billing", "rmq_system", *INTERNAL]
OWN = ["orders", "%RETRY%billing", "%DLQ%billing", "rmq_system"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A message of each topic."""
    root = tmp_path_factory.mktemp("internal") / "broker-a"
    owner = Owner(settings(root, commit_log_file_bytes=1 << 20, flush=Flush.ASYNC))
    for topic in TOPICS:
        owner.append(topic, 0, [topic.encode()])
    owner.store.close()
    return root


def read_topics(store: Path, **options: str) -> list[str]:
    reader = LogReader(SourceOptions.parse({"path": str(store), "columns": "body", **options}))
    rows = [
        body.decode()
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for body in batch.column("body").to_pylist()
    ]
    return sorted(rows)


def test_a_dataframe_has_internal_topics_only_on_request(store: Path) -> None:
    assert read_topics(store) == sorted(OWN)
    assert read_topics(store, topicPattern="*") == sorted(OWN)
    assert read_topics(store, topicPattern="rmq_*") == ["rmq_system"]
    assert read_topics(store, includeInternalTopics="true") == sorted(TOPICS)
    assert read_topics(store, includeInternalTopics="true", topicPattern="rmq_s*") == [
        "rmq_sys_wheel_timer",
        "rmq_system",
    ]
    named = {"topics": "TBW102,orders", "includeInternalTopics": "true"}
    assert read_topics(store, **named) == ["TBW102", "orders"]


@pytest.mark.parametrize(
    "options",
    [
        {"topics": "orders,SCHEDULE_TOPIC_XXXX"},
        {"topic": "rmq_sys_wheel_timer"},
        {"topicPattern": "rmq_sys_*"},
        {"topicPattern": "TBW102"},
    ],
)
def test_a_named_internal_topic_is_refused_without_the_option(options: dict[str, str]) -> None:
    sentence = "is an internal topic of the brokers: option includeInternalTopics=true reads it"
    for parse in (SourceOptions.parse, StreamOptions.parse):
        with pytest.raises(OptionError, match=sentence):
            parse({**ENDPOINT, **options})
        parse({**ENDPOINT, **options, "includeInternalTopics": "true"})
        with pytest.raises(OptionError, match="neither false nor true"):
            parse({**ENDPOINT, **options, "includeInternalTopics": "yes"})


@pytest.mark.parametrize("includes", [False, True])
async def test_the_pattern_of_a_stream_matches_internal_topics_only_on_request(
    includes: bool,
) -> None:
    options = StreamOptions.parse(
        {**ENDPOINT, "topicPattern": "*", "includeInternalTopics": str(includes).lower()}
    )

    def look(address: str) -> list[str]:
        cluster = StreamCluster(
            StreamOptions.parse(
                {
                    "endpoint": address,
                    "topicPattern": "*",
                    "includeInternalTopics": str(includes).lower(),
                }
            )
        )
        try:
            return [queue.topic for queue in cluster.queues()]
        finally:
            cluster.close()

    async with FakeCluster() as fake:
        for topic in TOPICS:
            fake.create_topic(topic)
        found = await asyncio.to_thread(look, fake.address)
    assert found == sorted(TOPICS if includes else OWN)
    assert [options.selection.wants_topic(topic) for topic in INTERNAL] == [includes] * len(
        INTERNAL
    )


# Exports.

OLD = {"names": None, "pattern": None}


def check(former: dict[str, object], topics: TopicChoice) -> None:
    manifest = ExportManifest(1, "id", former, {}, [], [])
    _check_topics(ExportTarget("/lake"), manifest, topics)


def test_an_export_goes_on_with_the_manifests_of_earlier_versions() -> None:
    check(OLD, TopicChoice())
    check({**OLD, "pattern": "orders-*"}, TopicChoice(pattern="orders-*"))
    check({**OLD, "names": ["orders"]}, TopicChoice(frozenset({"orders"})))
    # Such a pattern exported internal topics.
    with pytest.raises(ExportError, match="pass --include-internal-topics"):
        check({**OLD, "pattern": "*"}, TopicChoice(pattern="*"))
    check({**OLD, "pattern": "*"}, TopicChoice(pattern="*", includes_internal=True))


@pytest.mark.parametrize(
    "choice",
    [
        TopicChoice(),
        TopicChoice(includes_internal=True),
        TopicChoice(pattern="*"),
        TopicChoice(pattern="rmq*", includes_internal=True),
        TopicChoice(frozenset({"orders"})),
        TopicChoice(frozenset({"TBW102"}), includes_internal=True),
    ],
)
def test_an_export_has_internal_topics_only_on_request_and_in_every_run(
    choice: TopicChoice,
) -> None:
    content = json.loads(json.dumps(choice.to_json()))
    assert TopicChoice.from_json(content) == choice
    check(content, choice)
    wanted = Counter(topic for topic in TOPICS if choice.selection.wants_topic(topic))
    assert choice.includes_internal or not wanted.keys() & set(INTERNAL)
    other = TopicChoice(choice.names, choice.pattern, not choice.includes_internal)
    if choice.names == frozenset({"orders"}):
        check(content, other)
        return
    with pytest.raises(ExportError, match="include-internal-topics"):
        check(content, other)


def test_an_export_of_a_named_internal_topic_is_refused_without_the_option() -> None:
    with pytest.raises(ExportError, match="'TBW102' is an internal topic"):
        check(OLD, TopicChoice(frozenset({"TBW102"})))
    arguments = ["export", "--endpoint", "127.0.0.1:1", "--target", "/lake"]
    options = parser("spark").parse_args([*arguments, "--include-internal-topics"])
    assert options.include_internal_topics
    assert not parser("spark").parse_args(arguments).include_internal_topics


def test_a_selection_of_records_has_all_topics_unless_it_excludes_internal_ones() -> None:
    assert all(map(Selection().wants_topic, TOPICS))
    chosen = Selection(includes_internal=False)
    assert [topic for topic in TOPICS if chosen.wants_topic(topic)] == OWN
