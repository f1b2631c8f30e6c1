"""Options of reads, streams and writes: their names, values and errors. Without Spark."""

import ast
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from rockoon_core.signature import new_secret
from rockoon_spark.records.columns import COLUMNS, arrow_schema
from rockoon_spark.records.selection import Range
from rockoon_spark.sink import WriteOptions
from rockoon_spark.source.data_source import RockoonDataSource
from rockoon_spark.source.live_cluster import LiveCluster
from rockoon_spark.source.option_table import OptionError, Use, given_options
from rockoon_spark.source.options import SourceOptions
from rockoon_spark.stream.options import StreamOptions

ENDPOINT = {"endpoint": "127.0.0.1:9876"}
ROWS = StructType().add("body", "binary")


def batch(**options: str) -> SourceOptions:
    return SourceOptions.parse({**ENDPOINT, **options})


def stream(**options: str) -> StreamOptions:
    return StreamOptions.parse({**ENDPOINT, **options})


def test_names_of_kafkas_source_mean_the_same_in_any_case() -> None:
    assert batch(SUBSCRIBE="a, b") == batch(topics="b,a") == batch(topic="a", Subscribe="b")
    assert stream(subscribe="a, b") == stream(Topics="b,a") == stream(topic="b,a")
    assert batch(STARTINGOFFSETS="EARLIEST") == batch(startingOffsets="earliest") == batch()
    assert stream(topics="a", startingOffsets="Latest") == stream(topics="a")
    assert batch(failOnDataLoss="FALSE") == batch(failOnDataLoss="false")
    for options in (
        batch(subscribePattern="orders-[0-9]+"),
        stream(subscribePattern="orders-[0-9]+"),
    ):
        wants = options.selection.wants_topic
        assert [topic for topic in ("orders-7", "orders-7x", "orders") if wants(topic)] == [
            "orders-7"
        ]


def test_the_schema_has_the_columns_and_needs_no_import_of_the_reader() -> None:
    """Spark starts a process for the schema of each read."""
    found = RockoonDataSource({}).schema()
    assert found == from_arrow_schema(arrow_schema(list(COLUMNS)))
    schema = """
        from pyspark_rockoon import DefaultSource
        DefaultSource({"endpoint": "127.0.0.1:9876", "columns": "queue,body"}).schema()
    """
    heavy = {"numpy", "pyarrow", "grpc", "google", "asyncio"}
    assert not heavy & {name.partition(".")[0] for name in _imported_by(schema)}


def test_the_plan_of_a_stream_needs_no_import_of_producers_consumers_and_batch_sources() -> None:
    """Spark starts a process for the plan of each stream."""
    imported = _imported_by("import rockoon_spark.stream.reader")
    assert {"rockoon_spark.stream.cluster", "rockoon.net.connection"} <= imported
    parts = {".".join(name.split(".")[:2]) for name in imported}
    assert not parts & {"rockoon.cluster", "rockoon.producer", "rockoon.consumer"}
    assert not imported & {"rockoon_spark.source.live_cluster", "rockoon_format.generation"}


def _imported_by(code: str) -> set[str]:
    """Return the modules that a new process of Spark imports when it runs some code."""
    script = f"""
import sys
import pyspark.sql.datasource
before = set(sys.modules)
{textwrap.dedent(code)}
print(sorted(set(sys.modules) - before))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(ast.literal_eval(done.stdout))


def test_assigned_queues_are_the_only_ones_of_their_topics() -> None:
    text = '{"a": [0, 2], "b": ["broker-a:1"]}'
    for options in (batch(assign=text), stream(assign=text)):
        wants = options.selection.wants_queue
        assert options.selection.one_of["topic"] == {"a", "b"}
        assert wants("a", "broker-a", 0)
        assert wants("a", "broker-b", 2)
        assert wants("b", "broker-a", 1)
        assert not wants("b", "broker-b", 1)
        assert not wants("a", "broker-a", 1)
        assert not wants("c", "broker-a", 0)


def test_times_of_queues_are_ranges_and_a_broker_may_have_its_own() -> None:
    options = batch(
        topics="a",
        startingOffsetsByTimestamp='{"a": {"0": 1700000000000, "broker-b:0": 1700000000500}}',
        endingOffsetsByTimestamp='{"a": {"0": 1700000001000}}',
    )
    times_of = options.selection.times_of
    least, most = 1_700_000_000_000_000, 1_700_000_001_000_000 - 1
    assert times_of("a", "broker-a", 0) == Range(least, most)
    assert times_of("a", "broker-b", 0) == Range(least + 500_000, most)
    assert times_of("a", "broker-b", 1) == Range()
    starting = stream(topics="a", startingOffsetsByTimestamp='{"a": {"0": 1700000000000}}').starting
    assert starting.times_ms == {("a", "", 0): 1_700_000_000_000}


def test_headers_are_the_column_properties() -> None:
    names = list(COLUMNS)
    assert batch().schema.names == batch(includeHeaders="true").schema.names == names
    assert batch(includeHeaders="false").schema.names == [n for n in names if n != "properties"]
    assert stream(topics="a", columns="body", includeHeaders="True").schema.names == [
        "body",
        "properties",
    ]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("250", 0.25), ("30s", 30), ("15m", 900), ("2 h", 7200), ("1min", 60)],
)
def test_a_delay_has_the_form_of_sparks_durations(text: str, seconds: float) -> None:
    options = stream(topics="a", minOffsetsPerTrigger="10", maxTriggerDelay=text)
    assert (options.messages_min, options.delay_seconds_max) == (10, seconds)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"subscibe": "a"}, "unknown options of batch reads: subscibe; did you mean 'subscribe'?"),
        ({"TopicPatern": "a"}, "did you mean 'topicPattern'?"),
        ({"kafka.bootstrap.servers": "a"}, "unknown options of batch reads: kafka.bootstrap"),
        ({"minOffsetsPerTrigger": "1"}, "an option of streams, not of batch reads"),
        ({"checkpointLocation": "/x"}, "an option of writes, not of batch reads"),
        ({"topics": "a", "subscribePattern": "a"}, "only one of .* topics and subscribePattern"),
        ({"subscribe": "a", "assign": '{"a": [0]}'}, "only one of the options topics and assign"),
        ({"subscribePattern": "a("}, "'a.' is not a regular expression: .*; option topicPattern"),
        ({"subscribePattern": "rmq_sys_.*"}, "option subscribePattern: .* is an internal topic"),
        ({"assign": '{"a": 0}'}, "option assign: .* is invalid, expected for example"),
        ({"assign": "{}"}, "option assign: .* is invalid"),
        ({"assign": '{"a": "12"}'}, "option assign: .* is invalid"),
        ({"assign": '{"a": [], "b": [0]}'}, "option assign: .* is invalid"),
        ({"assign": '{"a": [-1]}'}, "option assign: .* is invalid"),
        ({"assign": '{"a": ["1_0"]}'}, "option assign: .* is invalid"),
        ({"startingOffsets": '{"a": {"-1": 5}}'}, "option startingOffsets: .* is invalid"),
        ({"topicPattern": ""}, "option topicPattern: it is empty"),
        ({"subscribePattern": ""}, "option subscribePattern: it is empty"),
        ({"topics": "a", "topicPattern": "b*"}, "topics: topic 'a' does not match .* 'b.*'"),
        ({"assign": '{"a": [0]}', "startingOffsets": '{"b": {"0": 1}}'}, "'b' is not among the"),
        ({"columns": "bdoy"}, "option columns: bdoy: choose from .*; did you mean 'body'?"),
        ({"columns": "properties", "includeHeaders": "false"}, "contradicts column properties"),
        (
            {"startingOffsetsByTimestamp": '{"a": {"0": 17}}'},
            "ByTimestamp: 17 is not in epoch mill",
        ),
        (
            {"startingOffsetsByTimestamp": "17"},
            "option startingOffsetsByTimestamp: '17' is invalid",
        ),
        ({"accessKey": "reader"}, "option accessSecretFile or option accessSecret"),
        ({"accessSecret": "x"}, "options accessSecret: .*: set option accessKey"),
        ({"accessKey": "reader", "accessSecret": "short"}, "accessSecret: .*secret of access key"),
        ({"tlsCa": ""}, "option tlsCa: it is empty"),
        ({"tlsCa": "/nowhere/ca.pem"}, "options tlsCa: .*/nowhere/ca.pem"),
        ({"s3Region": "eu-west-1"}, "option s3Region cannot be used with a live cluster"),
    ],
)
def test_a_wrong_option_is_refused_with_a_sentence(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        batch(**options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"endingTimestamp": "1700000000000"}, "an option of batch reads, not of streams"),
        ({"maxOffsetPerTrigger": "1"}, "did you mean 'maxOffsetsPerTrigger'?"),
        (
            {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
            "9 is more than maxOffsetsPer",
        ),
        ({"topicPattern": ""}, "option topicPattern: it is empty"),
        ({"maxTriggerDelay": "soon"}, "'soon' is not a duration such as"),
        (
            {
                "startingOffsetsByTimestamp": '{"a": {"0": 1700000000000}}',
                "startingOffsets": "latest",
            },
            "only one of the options startingOffsets",
        ),
    ],
)
def test_a_wrong_option_of_a_stream_is_refused_with_a_sentence(
    options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(OptionError, match=sentence):
        stream(topics="a", **options)


def test_each_use_has_its_own_options() -> None:
    assert given_options({"Topic": "a"}, Use.WRITE) == {"topic": "a"}
    assert given_options({"Topic": "a"}, Use.BATCH) == {"topics": "a"}
    with pytest.raises(
        OptionError, match="columns is an option of batch reads and streams, not of"
    ):
        WriteOptions.parse({**ENDPOINT, "topic": "a", "columns": "body"}, ROWS)
    assert WriteOptions.parse({**ENDPOINT, "topic": "a"}, ROWS).topic == "a"


def test_a_table_has_its_options_and_not_the_properties_that_spark_adds() -> None:
    table = {"provider": "rockoon", "owner": "me", "path": "file:/warehouse/orders"}
    options = {"endpoint": "127.0.0.1:9876", "topics": "a"}
    given = {**table, **options, **{f"option.{name}": value for name, value in options.items()}}
    assert given_options(given, Use.BATCH) == options
    read = {"path": "/store", "topics": "a", "provider": "b"}
    with pytest.raises(OptionError, match="unknown options of batch reads: provider"):
        given_options(read, Use.BATCH)
    external = {"provider": "rockoon", "path": "file:/store", "option.topics": "a", "topics": "a"}
    assert given_options(external, Use.BATCH) == {"path": "/store", "topics": "a"}


@pytest.mark.parametrize(
    "path", ["s3://reader:SECRET@bucket/store", "s3a://bucket/store?access_key=a&secret_key=SECRET"]
)
def test_a_table_stores_no_address_with_a_secret(path: str) -> None:
    table = RockoonDataSource({"provider": "rockoon", "path": path})
    with pytest.raises(OptionError, match="path with a secret cannot be stored in a table") as told:
        table.schema()
    assert "SECRET" not in str(told.value)


def test_no_text_of_an_options_object_has_a_secret(tmp_path: Path) -> None:
    secret = new_secret()
    key = {"accessKey": "reader", "accessSecret": secret, "topics": "a"}
    given = batch(**key)
    assert isinstance(given.source, LiveCluster)
    written = {**ENDPOINT, "topic": "a", "accessKey": "reader", "accessSecret": secret}
    texts = [
        repr(given),
        repr(stream(**key)),
        repr(WriteOptions.parse(written, ROWS)),
        str(given.source.endpoint),
    ]
    assert all(secret not in text for text in texts)
    # Tasks connect with it.
    unpickled = pickle.loads(pickle.dumps(given.source)).endpoint
    assert unpickled.access.secret == secret
    file = tmp_path / "secret"
    file.write_text(secret)
    from_file = batch(accessKey="reader", accessSecretFile=str(file), topics="a").source
    assert isinstance(from_file, LiveCluster)
    assert from_file.endpoint.access.secret == secret  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        (
            StructType().add("bdoy", "binary"),
            "column 'bdoy', which is unknown; did you mean 'body'?",
        ),
        (StructType().add("body", "string"), "column 'body' as string, but its type is binary"),
        (
            StructType().add("x", "integer"),
            "column 'x', which is unknown: choose from topic, broker",
        ),
        (StructType(), "the schema has no column"),
        (StructType().add("body", "binary").add("body", "binary"), "or one twice: body, body"),
    ],
)
def test_a_schema_that_is_no_part_of_the_columns_is_refused(
    schema: StructType, sentence: str
) -> None:
    with pytest.raises(OptionError, match=sentence):
        RockoonDataSource(dict(ENDPOINT)).reader(schema)
    pruned = RockoonDataSource({**ENDPOINT, "columns": "topic,body"})
    with pytest.raises(
        OptionError, match="column 'tags', which is unknown: choose from topic, body"
    ):
        pruned.reader(StructType().add("tags", "string"))
