"""`rockoon group` and `rockoon offsets`: readers, start positions with reasons, and resets."""

import datetime
from pathlib import Path
from typing import Any

import pytest

MESSAGES = 20
NOON_MS = int(datetime.datetime(2026, 1, 31, 12).timestamp() * 1000)


@pytest.fixture(scope="module")
def read_group(rockoon: Any, cluster: Any) -> tuple[str, str]:
    """A group that has read a topic of twenty messages to its end."""
    topic = cluster.new_topic("read", queues_per_broker=1)
    rockoon("produce", topic, stdin="\n".join(str(number) for number in range(MESSAGES)))
    group = f"{topic}-billing"
    rockoon("consume", topic, "--group", group, "--from", "first")
    return group, topic


def offsets_of(rockoon: Any, group: str) -> dict[tuple[str, int], int]:
    shown = rockoon("offsets", "show", group, "--json").json
    return {(q["broker"], q["queue_id"]): q["committed_offset"] for q in shown["queues"]}


def test_why_tells_where_a_group_started_and_what_is_left(
    rockoon: Any, read_group: tuple[str, str]
) -> None:
    group, topic = read_group
    told = rockoon("offsets", "why", group).out
    assert f"{topic}@broker-a:0\n  began   at 0 (FIRST) on " in told
    assert "created at revision" in told, "the figures the decision was made on"
    assert " committed by " in told
    assert "nothing: it has read up to the end" in told

    queues = rockoon("offsets", "why", group, topic, "--json").json["queues"]
    assert [(each["broker"], each["queue_id"]) for each in queues] == [
        ("broker-a", 0),
        ("broker-b", 0),
    ]
    for queue in queues:
        assert queue["progress"]["start_reason"] == "FIRST"
        assert queue["progress"]["start_offset"] == 0
        assert queue["progress"]["epoch"] > 0
        assert queue["lag"]["lag"] == 0
    assert sum(queue["progress"]["committed_offset"] for queue in queues) == MESSAGES


def test_a_queue_born_after_the_group_subscribed_starts_at_its_first_message(
    rockoon: Any, read_group: tuple[str, str]
) -> None:
    group, topic = read_group
    rockoon("topic", "expand", topic, "--add", "broker-b=1")
    told = rockoon("offsets", "why", group).out
    assert f"{topic}@broker-b:1\n  began   not yet" in told
    rockoon("consume", topic, "--group", group)
    queues = rockoon("offsets", "why", group, "--json").json["queues"]
    assert queues[-1]["progress"]["start_reason"] == "NEW_QUEUE"
    assert queues[-1]["progress"]["start_offset"] == 0


def test_groups_are_listed_and_described(rockoon: Any, read_group: tuple[str, str]) -> None:
    group, topic = read_group
    assert [group, topic] == next(w for w in rockoon("group", "list").words if w[:1] == [group])[:2]
    listed = {each["group"]: each for each in rockoon("group", "list", "--json").json}
    assert list(listed[group]["topics"]) == [topic]
    described = rockoon("group", "describe", group).out
    assert f"reads: {topic}" in described
    assert "It has no members." in described
    assert "total lag: 0 messages" in described
    assert rockoon("group", "describe", group, "--json").json["members"] == []


def test_a_reset_is_planned_applied_and_undone(rockoon: Any, read_group: tuple[str, str]) -> None:
    group, topic = read_group
    before = offsets_of(rockoon, group)

    plan = rockoon("offsets", "reset", group, topic, "--shift", "-3", "--dry-run", "--json").json
    assert not plan["applied"]
    assert offsets_of(rockoon, group) == before, "a dry run changes nothing"

    refused = rockoon("offsets", "reset", group, topic, "--to-earliest", status=1)
    assert "confirm with --yes" in refused.err
    assert "QUEUE HOLDS" in refused.out, "the plan is shown before the question"
    assert offsets_of(rockoon, group) == before

    done = rockoon("offsets", "reset", group, topic, "--to-earliest", "--yes").out
    assert f"{MESSAGES} messages will be read again" in done, "what was moved is printed"
    assert set(offsets_of(rockoon, group).values()) == {0}
    assert "(RESET)" in rockoon("offsets", "why", group).out
    reset_id = done.split("`rockoon offsets undo ")[1].split("`")[0]

    assert "undone" in rockoon("offsets", "undo", reset_id).out
    assert offsets_of(rockoon, group) == before


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (["--to-latest"], "end"),
        (["--to-offset", "1"], 1),
        (["--to-offset", "1000000"], "end"),
        (["--to-time", "2001-01-01T00:00:00Z"], 0),
        (["--by-duration", "1h"], 0),
        (["--by-duration", "0s"], "end"),
        (["--shift", "-1000"], 0),
    ],
)
def test_reset_targets(
    rockoon: Any, read_group: tuple[str, str], target: list[str], expected: int | str
) -> None:
    group, topic = read_group
    arguments = ("offsets", "reset", group, topic, "--queue", "broker-a:0", "--dry-run", "--json")
    plan = rockoon(*arguments, *target).json
    (step,) = plan["steps"]
    assert step["to_offset"] == (step["max_offset"] if expected == "end" else expected)
    assert step["clamped"] == (target[-1] in ("1000000", "-1000"))


def test_offsets_are_exported_and_set_from_the_file(
    rockoon: Any, read_group: tuple[str, str], tmp_path: Path
) -> None:
    group, topic = read_group
    file = tmp_path / "offsets.jsonl"
    assert f"offsets written to {file}" in rockoon("offsets", "export", group, "-o", str(file)).out
    saved = offsets_of(rockoon, group)
    rockoon("offsets", "reset", group, topic, "--to-earliest", "--yes")
    rockoon("offsets", "reset", group, topic, "--from-file", str(file), "--yes")
    assert offsets_of(rockoon, group) == saved

    again = rockoon("offsets", "import", str(file), "--json").json
    assert again["imported"] == []
    assert len(again["skipped"]) == len(saved), "what is stored already stays"


def test_rocketmq_s_progress_is_brought_along(rockoon: Any, taken: str, tmp_path: Path) -> None:
    file = tmp_path / "consumerOffset.json"
    entries = '"TOPIC@moved": {0: 0, 1: 0}, "%RETRY%moved@moved": {0: 0}, "odd": {0: 1}'
    file.write_text(f'{{"offsetTable": {{{entries}}}}}'.replace("TOPIC", taken))
    arguments = ("offsets", "import", str(file), "--broker", "broker-a")
    planned = rockoon(*arguments, "--dry-run").out
    assert "creates the queue" in planned
    assert "3 offsets would be imported, 1 skipped" in planned
    assert "skipped: key 'odd': it is not topic@group" in planned
    done = rockoon(*arguments, "--json").json
    assert (done["imported_count"], done["skipped_count"]) == (3, 1)
    assert [each["creates_queue"] for each in done["imported"]] == [False, False, True]
    exported = rockoon("offsets", "export", "--format", "rocketmq", "--broker", "broker-a").out
    assert f"{taken}@moved" in exported


def test_a_group_from_its_creation_to_its_end(rockoon: Any) -> None:
    made = rockoon("group", "create", "made", "--from", "2h", "--new-queue-rule", "classic").out
    assert made == "group made starts from 2 h ago\n"
    config = {each["group"]: each for each in rockoon("group", "list", "--json").json}["made"]
    assert config["new_queue_rule"] == "classic"
    assert config["start_policy"]["duration_ms"] == 7_200_000
    assert rockoon("offsets", "why", "made").out.startswith("Group made reads no queues yet")
    assert rockoon("offsets", "show", "made").out == "It reads no queues yet.\n"
    assert "group 'made' exists already" in rockoon.fails("group", "create", "made")
    rockoon("group", "delete", "made", "--yes")
    assert "'made' does not exist" in rockoon.fails("group", "describe", "made")


def test_a_group_says_what_becomes_of_progress_that_does_not_fit(rockoon: Any) -> None:
    rockoon("group", "create", "strict", "--below-min", "fail", "--other-incarnation", "last")
    rockoon("group", "update", "strict", "--above-max", "first")
    said = rockoon("group", "describe", "strict", "--json").json
    policies = {"below_min": "fail", "above_max": "first", "other_incarnation": "last"}
    assert {name: said[name] for name in policies} == policies
    shown = rockoon("group", "describe", "strict").out.splitlines()
    assert {"below-min: fail", "above-max: first", "other-incarnation: last"} <= set(shown)
    assert "retry-queues: 1 (default)" in shown
    rockoon("group", "update", "strict", "--above-max", "last")
    assert "above-max: last" in rockoon("group", "describe", "strict").out
    assert "'skip' is not one of first, last, fail" in rockoon.misused(
        "group", "update", "strict", "--below-min", "skip"
    )


def test_attributes_of_a_group_are_set_changed_and_taken_away(rockoon: Any) -> None:
    rockoon("group", "create", "bound", "--attribute", "a=1", "--attribute", "b=2")
    rockoon("group", "update", "bound", "--attribute", "a=3", "--attribute", "b=")
    said = rockoon("group", "describe", "bound", "--json").json
    assert said["attributes"] == {"a": "3"}


def test_a_group_says_how_its_receivers_get_messages(rockoon: Any) -> None:
    rockoon("group", "create", "received", "--fifo", "yes", "--retry-delays", "10s,1m30s")
    said = rockoon("group", "describe", "received", "--json").json
    assert (said["fifo"], said["retry_delays_ms"]) == ("yes", [10_000, 90_000])
    shown = rockoon("group", "describe", "received").out.splitlines()
    assert {"fifo: yes", "retry-delays: 10 s 1.5 min"} <= set(shown)
    rockoon("group", "update", "received", "--fifo", "no", "--retry-delays", "5s")
    said = rockoon("group", "describe", "received", "--json").json
    assert (said["fifo"], said["retry_delays_ms"]) == ("no", [5_000])
    rockoon("group", "update", "received", "--retry-delays", "default")
    assert rockoon("group", "describe", "received", "--json").json["retry_delays_ms"] == []
    refused = rockoon.fails("group", "update", "received", "--retry-delays", "13h")
    assert "retry_delays_ms 46800000: 0 to 43200000 (12 hours)" in refused


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("tail:100", "TAIL", ("tail_messages", 100)),
        ("20260131120000", "TIMESTAMP", ("timestamp_ms", NOON_MS)),
        ("2026-01-31T12:00", "TIMESTAMP", ("timestamp_ms", NOON_MS)),
        ("90m", "DURATION", ("duration_ms", 5_400_000)),
        ("CONSUME_FROM_TIMESTAMP", "DURATION", ("duration_ms", 1_800_000)),
        ("CONSUME_FROM_FIRST_OFFSET", "FIRST", None),
        ("CONSUME_FROM_LAST_OFFSET", "LAST", None),
        ("CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST", "LAST", None),
        ("CONSUME_FROM_MIN_OFFSET", "LAST", None),
        ("CONSUME_FROM_MAX_OFFSET", "LAST", None),
    ],
)
def test_a_group_starts_where_it_is_told_in_rocketmqs_words_or_ours(
    rockoon: Any, text: str, kind: str, value: tuple[str, int] | None
) -> None:
    rockoon("group", "create", "told", "--if-absent")
    policy = rockoon("group", "update", "told", "--from", text, "--json").json["start_policy"]
    assert policy.pop("consume_from") == f"CONSUME_FROM_{kind}"
    assert {name: number for name, number in policy.items() if number} == dict(
        [value] * bool(value)
    )


def test_reading_with_a_paused_group_is_refused_until_it_is_resumed(
    rockoon: Any, topic: str
) -> None:
    group = f"{topic}-paused"
    rockoon("produce", topic, stdin="one\ntwo\n")
    rockoon("group", "create", group, "--from", "first")
    rockoon("group", "pause", group)
    assert f"{group!r} is paused" in rockoon("consume", topic, "--group", group, status=1).err
    rockoon("group", "resume", group)
    assert sorted(rockoon("consume", topic, "--group", group).out.split()) == ["one", "two"]


def test_a_group_is_paused_and_resumed_and_keeps_what_else_was_said_of_it(rockoon: Any) -> None:
    rockoon("group", "create", "resting", "--from", "first")

    def config() -> Any:
        return rockoon("group", "describe", "resting", "--json").json

    assert "rockoon group resume resting" in rockoon("group", "pause", "resting").out
    assert (config()["consume_disabled"], config()["start_policy"]["consume_from"]) == (
        True,
        "CONSUME_FROM_FIRST",
    )
    assert "paused; to resume" in rockoon("group", "describe", "resting").out
    assert rockoon("group", "resume", "resting").out == "group resting reads again\n"
    assert (config()["consume_disabled"], config()["start_policy"]["consume_from"]) == (
        False,
        "CONSUME_FROM_FIRST",
    )
    assert "'absent' does not exist" in rockoon.fails("group", "pause", "absent")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["group", "describe", "absent"], "consumer group 'absent' does not exist"),
        (["group", "delete", "absent", "--yes"], "consumer group 'absent' does not exist"),
        (["group", "create", "not a name"], "'not a name' is not a consumer group name"),
        (["offsets", "show", "absent"], "consumer group 'absent' does not exist"),
        (["offsets", "why", "absent"], "consumer group 'absent' does not exist"),
        (["offsets", "reset", "absent", "TAKEN", "--to-latest"], "group 'absent' does not exist"),
        (
            ["offsets", "undo", "absent"],
            "'absent' does not exist: plans are kept for a limited time (setting plan_seconds",
        ),
        (["offsets", "export", "absent"], "consumer group 'absent' does not exist"),
        (["offsets", "export", "--broker", "absent"], "no live broker is named 'absent'"),
        (["group", "members", "absent"], "consumer group 'absent' does not exist"),
        (["group", "locks", "absent"], "consumer group 'absent' does not exist"),
        (["offsets", "import", "no/such.file"], "no/such.file: No such file"),
        (["offsets", "reset", "g", "TAKEN", "--from-file", "no/such.file"], "No such file"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    rockoon: Any, taken: str, arguments: list[str], sentence: str
) -> None:
    words = [taken if each == "TAKEN" else each for each in arguments]
    assert sentence in rockoon.fails(*words)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["reset", "g", "t"], "set the target with one of --to-earliest"),
        (["reset", "g", "t", "--to-latest", "--to-offset", "0"], "set the target with one of"),
        (["reset", "g", "t", "--to-offset", "-1"], "greater than or equal to 0"),
        (["reset", "g", "t", "--to-offset", str(1 << 63)], f"less than or equal to {1 << 62}"),
        (["reset", "g", "t", "--shift", str(-1 << 63)], f"greater than or equal to {-1 << 62}"),
        (["reset", "g", "t", "--to-time", "noon"], "'noon' is not a time"),
        (["reset", "g", "t", "--by-duration", "2 fortnights"], "is not a duration"),
        (["reset", "g", "t", "--to-latest", "--queue", "x"], "'x' is not of the form BROKER:QUEUE"),
        (["export", "--format", "xml"], "'xml' is neither jsonl nor rocketmq"),
        (["export", "--format", "rocketmq"], "--format rocketmq needs --broker"),
    ],
)
def test_wrong_usage_is_explained(rockoon: Any, arguments: list[str], sentence: str) -> None:
    assert sentence in rockoon.misused("offsets", *arguments)


def test_a_file_of_offsets_that_cannot_be_read_names_the_line(rockoon: Any, tmp_path: Path) -> None:
    file = tmp_path / "offsets.jsonl"
    file.write_text('{"topic": "t", "broker": "b", "queue_id": 0, "offset": 1}\n{"topic": "t"}\n')
    said = rockoon.fails("offsets", "reset", "g", "t", "--from-file", str(file))
    assert f"{file}, line 2: not of the form" in said
    for odd in ("1.5", "true", "9223372036854775808"):
        file.write_text(f'{{"topic": "t", "broker": "b", "queue_id": 0, "offset": {odd}}}')
        said = rockoon.fails("offsets", "reset", "g", "t", "--from-file", str(file))
        assert f"{file}, line 1: not of the form" in said
    file.write_text('{"topic": "other", "broker": "b", "queue_id": 0, "offset": 1}\n')
    said = rockoon.fails("offsets", "reset", "g", "t", "--from-file", str(file))
    assert "has no offset of topic t" in said
