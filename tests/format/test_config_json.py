"""Configuration files as Java writes them, and as Rockoon does."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rockoon_format.config_json import (
    ConfigError,
    ConsumerOffsets,
    DataVersion,
    DelayOffsets,
    GroupConfig,
    GroupConfigs,
    GroupTopic,
    LocalQueue,
    TopicConfig,
    TopicConfigs,
    parse_json,
    read_consumer_offsets,
    read_delay_offsets,
    read_groups,
    read_local_offsets,
    read_topics,
    write_consumer_offsets,
    write_delay_offsets,
    write_groups,
    write_local_offsets,
    write_topics,
)
from support.random_messages import many_examples

CONSUMER_OFFSETS = """{
\t"dataVersion":{
\t\t"counter":7,
\t\t"stateVersion":0,
\t\t"timestamp":1700000000000
\t},
\t"groupTopicMap":{
\t\t"GroupA":["TopicTest"]
\t},
\t"offsetTable":{
\t\t"TopicTest@GroupA":{0:5,1:6
\t\t}
\t}
}"""
VERSION = DataVersion(7, 0, 1_700_000_000_000)


def test_consumer_offsets_of_apache_are_read() -> None:
    expected = ConsumerOffsets({GroupTopic("GroupA", "TopicTest"): {0: 5, 1: 6}}, VERSION)
    assert read_consumer_offsets(CONSUMER_OFFSETS) == expected
    assert read_consumer_offsets(write_consumer_offsets(expected)) == expected


def test_consumer_offsets_of_the_oldest_brokers_have_no_version() -> None:
    found = read_consumer_offsets(b'{"offsetTable":{"%RETRY%g@g":{0:1}}}')
    assert found == ConsumerOffsets({GroupTopic("g", "%RETRY%g"): {0: 1}})


def test_what_we_write_is_strict_json() -> None:
    written = write_consumer_offsets(
        ConsumerOffsets({GroupTopic("g", "t"): {10: 3, 9: 4}}, VERSION)
    )
    assert json.loads(written)["offsetTable"] == {"t@g": {"9": 4, "10": 3}}
    assert written.decode().splitlines()[:3] == ["{", '\t"dataVersion":{', '\t\t"counter":7,']


def test_delay_offsets_are_keyed_by_level() -> None:
    raw = '{"dataVersion":{"counter":7,"timestamp":1700000000000},"offsetTable":{1:3,3:9}}'
    expected = DelayOffsets({1: 3, 3: 9}, VERSION)
    assert read_delay_offsets(raw) == expected
    assert read_delay_offsets(write_delay_offsets(expected)) == expected


def test_local_offsets_have_an_object_for_a_key_or_its_text() -> None:
    queue = {LocalQueue("TopicTest", "broker-a", 3): 42}
    java = '{"offsetTable":{{"brokerName":"broker-a","queueId":3,"topic":"TopicTest"}:42}}'
    assert read_local_offsets(java) == queue
    assert read_local_offsets(write_local_offsets(queue)) == queue
    assert json.loads(write_local_offsets(queue)) == {
        "offsetTable": {'{"brokerName":"broker-a","queueId":3,"topic":"TopicTest"}': 42}
    }


def test_a_topic_without_fields_has_the_defaults_of_java() -> None:
    topics = read_topics('{"topicConfigTable":{"T":{"topicName":"T"}}}').topics
    assert topics == {"T": TopicConfig(topic="T")}
    assert (topics["T"].read_queues, topics["T"].write_queues, topics["T"].perm) == (16, 16, 6)


def test_a_topic_keeps_what_we_do_not_know() -> None:
    raw = """{"dataVersion":{"counter":"7","timestamp":1700000000000.0},"topicConfigTable":{"T":{
        "attributes":{"cleanup.policy":"COMPACTION"},"order":true,"perm":4,"readQueueNums":"8",
        "topicFilterType":"MULTI_TAG","topicName":"T","topicSysFlag":2,"writeQueueNums":4.0,
        "future":{"a":[1,2]},"gone":null,}}}"""
    expected = TopicConfig(
        topic="T",
        read_queues=8,
        write_queues=4,
        perm=4,
        filter_type="MULTI_TAG",
        sys_flag=2,
        ordered=True,
        attributes={"cleanup.policy": "COMPACTION"},
        extra={"future": {"a": [1, 2]}},
    )
    found = read_topics(raw)
    assert found == TopicConfigs({"T": expected}, VERSION)
    written = write_topics(found)
    assert read_topics(written) == found
    assert b"null" not in written
    assert list(json.loads(written)["topicConfigTable"]["T"]) == sorted(
        json.loads(written)["topicConfigTable"]["T"]
    )


def test_groups_read_back_with_policies_and_forbidden_topics() -> None:
    raw = """{"forbiddenTable":{"g":{"T":5}},"subscriptionGroupTable":{
        "g":{"groupName":"g","groupRetryPolicy":{"type":"CUSTOMIZED"},"retryMaxTimes":3,
             "consumeMessageOrderly":"true"},
        "d":{}}}"""
    found = read_groups(raw)
    assert found.groups == {
        "g": GroupConfig(
            group="g",
            retry_times_max=3,
            consume_orderly=True,
            extra={"groupRetryPolicy": {"type": "CUSTOMIZED"}},
        ),
        "d": GroupConfig(group="d"),
    }
    assert found.forbidden == {"g": {"T": 5}}
    assert read_groups(write_groups(found)) == found


@pytest.mark.parametrize("absent", ["{}", '{"offsetTable":null}', '{"dataVersion":null}', "null"])
def test_absent_and_null_tables_are_empty(absent: str) -> None:
    assert read_consumer_offsets(absent) == ConsumerOffsets({})
    assert read_delay_offsets(absent) == DelayOffsets({})
    assert read_topics(absent) == TopicConfigs({})
    assert read_groups(absent) == GroupConfigs({})
    assert read_local_offsets(absent) == {}


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ("{1:2,-3:4}", {"1": 2, "-3": 4}),
        ("{'a':'it\\'s',}", {"a": "it's"}),
        ("[1,2,]", [1, 2]),
        ("{bare:true,$x_1:null}", {"bare": True, "$x_1": None}),
        ('"\\u4e2d\\x41\\n\\/"', "\u4e2dA\n/"),
        ('"\\ud83d\\ude00"', "\U0001f600"),
        ("\ufeff {} ".encode(), {}),
        ("-1.5e3", -1500.0),
        ('{"a":1,"a":2}', {"a": 2}),
    ],
)
def test_what_fastjson_accepts_is_accepted(raw: str | bytes, value: Any) -> None:
    assert parse_json(raw) == value


@pytest.mark.parametrize(
    ("raw", "line", "column"),
    [
        ("", 1, 1),
        ("{", 1, 2),
        ('{"a":1}\n x', 2, 2),
        ('{\n\t"a" 1}', 2, 6),
        ('{\n\t"a":1 "b":2}', 2, 8),
        ('{\n"a":,}', 2, 5),
        ('["a', 1, 2),
        ('["\\q"]', 1, 3),
        ('["\\u12"]', 1, 3),
        ("[01]", 1, 3),
        ("[,]", 1, 2),
        ("nul", 1, 1),
        ("[1}", 1, 3),
        (b"{}\n\xff", 2, 1),
        ("[" * 40, 1, 34),
        ("{" * 40, 1, 34),
        ("9" * 41, 1, 1),
    ],
)
def test_garbage_is_refused_with_its_place(raw: str | bytes, line: int, column: int) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_json(raw)
    assert (caught.value.line, caught.value.column) == (line, column)


@pytest.mark.parametrize(
    ("odd", "place", "reason"),
    [
        ('"T":{}', "key 'T'", "not topic@group"),
        ('"@g":{0:1}', "key '@g'", "not topic@group"),
        ('"T@g":{"x":1}', "T@g, queue x", "queue: 'x' is not a 64-bit number"),
        ('"T@g":{0:1.5}', "T@g, queue 0", "offset: 1.5 is not a 64-bit number"),
        ('"T@g":{0:true}', "T@g, queue 0", "True"),
        ('"T@g":{0:null}', "T@g, queue 0", "None"),
        ('"T@g":{0:1e300}', "T@g, queue 0", "64-bit"),
        ('"T@g":{0:9223372036854775808}', "T@g, queue 0", "64-bit"),
        ('"T@g":[]', "T@g", "no object of offsets by queue"),
        ('"T@g":null', "T@g", "no object of offsets by queue"),
    ],
)
def test_an_odd_entry_of_the_progress_costs_no_other(odd: str, place: str, reason: str) -> None:
    found = read_consumer_offsets(f'{{"offsetTable":{{"a@g":{{0:1}},{odd},"b@g":{{0:2}}}}}}')
    assert (found.offsets["g", "a"], found.offsets["g", "b"]) == ({0: 1}, {0: 2})
    (fault,) = found.faults
    assert fault.place == place
    assert reason in fault.reason


def test_an_odd_version_of_the_progress_costs_no_entry() -> None:
    found = read_consumer_offsets('{"dataVersion":7,"offsetTable":{"a@g":{0:1}}}')
    assert found.offsets == {("g", "a"): {0: 1}}
    assert [each.place for each in found.faults] == ["dataVersion"]


@pytest.mark.parametrize(
    ("read", "raw", "place"),
    [
        (read_consumer_offsets, "[]", "the file: expected an object"),
        (read_delay_offsets, '{"offsetTable":{1:9223372036854775808}}', "64-bit"),
        (read_topics, '{"topicConfigTable":{"T":{"perm":"rw"}}}', "topic T: perm"),
        (read_topics, '{"topicConfigTable":{"T":{"order":1}}}', "neither true nor false"),
        (read_topics, '{"topicConfigTable":{"T":{"attributes":{"a":1}}}}', "attributes: a"),
        (read_groups, '{"subscriptionGroupTable":{"g":7}}', "group g: expected an object"),
        (read_local_offsets, '{"offsetTable":{"3":4}}', "expected an object"),
        (read_local_offsets, '{"offsetTable":{{"topic":"T"}:4}}', "names no queue"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_with_its_name(
    read: Any, raw: str, place: str
) -> None:
    with pytest.raises(ConfigError, match=r".") as caught:
        read(raw)
    assert place in str(caught.value)


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(value=json_values)
@many_examples
def test_strict_json_reads_as_json(value: Any) -> None:
    for ascii_only in (True, False):
        assert parse_json(json.dumps(value, ensure_ascii=ascii_only)) == value


@given(raw=st.text(alphabet="{}[]:,'\"\\u0a1-. tn\n", max_size=40))
@many_examples
def test_noise_is_read_or_refused_and_nothing_else(raw: str) -> None:
    try:
        parse_json(raw)
    except ConfigError as error:
        place = (error.line, error.column)
    else:
        return
    assert min(place) >= 1


names = st.text(alphabet="abcXYZ%_-", min_size=1, max_size=10)
numbers = st.dictionaries(st.integers(0, 2**31 - 1), st.integers(-(2**63), 2**63 - 1), max_size=4)


@given(
    table=st.dictionaries(st.builds(GroupTopic, names, names), numbers, max_size=4),
    version=st.builds(DataVersion, st.integers(0, 2**62), st.integers(0, 9), st.integers(0, 2**50)),
)
@many_examples
def test_any_offsets_read_back(
    table: dict[GroupTopic, dict[int, int]], version: DataVersion
) -> None:
    content = ConsumerOffsets(table, version)
    assert read_consumer_offsets(write_consumer_offsets(content)) == content
