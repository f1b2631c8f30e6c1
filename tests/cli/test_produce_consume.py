"""`rockoon produce` and `rockoon consume`: lines in, lines out."""

import asyncio
import gzip
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rockoon.cli.produce import LineMessage, LineReader, Tally, produce, read_pipe
from rockoon.cli.session import with_cluster
from rockoon.cli.watch import Interrupt, wait_set
from support.running_command import running
from support.waiting import DEADLINE_SECONDS, wait_until


def test_lines_from_a_pipe_arrive_as_messages(rockoon: Any, topic: str) -> None:
    sent = rockoon("produce", topic, stdin="one\ntwo\r\n\nthree")
    assert sent.out.startswith("3 of 3 messages acknowledged in ")
    assert sent.err == "rockoon: 1 empty line not sent\n"
    assert sorted(rockoon("consume", topic).out.splitlines()) == ["one", "three", "two"]


async def test_standard_input_stays_open_after_it_was_read() -> None:
    end, start = os.pipe()
    os.write(start, b"one\ntwo\n")
    os.close(start)
    with os.fdopen(end, "rb") as stream:
        assert [piece async for piece in read_pipe(stream)] == [b"one\ntwo\n"]
        # The interpreter closes it at its exit; then the number may be another file's.
        assert not stream.closed
        os.fstat(end)


def test_a_key_a_tag_and_properties_for_every_line(rockoon: Any, topic: str) -> None:
    options = ["--key", "k1", "--tag", "new", "--property", "source=shop", "--property", "n=a=b"]
    rockoon("produce", topic, *options, stdin="one\ntwo\n")
    read = [json.loads(line) for line in rockoon("consume", topic, "--json").out.splitlines()]
    assert [each["body"] for each in read] == ["one", "two"], "one key, one queue, in order"
    for each in read:
        assert (each["keys"], each["tags"]) == (["k1"], "new")
        assert each["properties"].items() >= {"source": "shop", "n": "a=b"}.items()
    for wrong in (["--property", "nonsense"], ["--key", "k", "--key-field", "id"]):
        rockoon.misused("produce", topic, *wrong)


def test_messages_of_consume_are_sent_again_with_all_that_their_sender_gave(
    rockoon: Any, topic: str
) -> None:
    first = ["--key", "k1", "--tag", "new", "--property", "source=shop"]
    rockoon("produce", topic, *first, stdin="one\n\xe4\n")
    rockoon("produce", topic, stdin=b"\xff\xfe\n")
    printed = rockoon("consume", topic, "--json").out
    copy = f"{topic}-copy"
    rockoon("topic", "create", copy)
    sent = rockoon("produce", copy, "--messages", "--json", stdin=printed).json
    assert (sent["sent"], sent["acknowledged"], sent["empty_lines"]) == (3, 3, 0)

    def contents(name: str) -> list[Any]:
        lines = rockoon("consume", name, "--json").out.splitlines()
        found = [
            (*map(each.get, ("body", "body_hex", "keys", "tags")), each["properties"].get("source"))
            for each in map(json.loads, lines)
        ]
        return sorted(found, key=str)

    assert contents(copy) == contents(topic)
    for line, reason in (
        ('{"keys": []}', "the object has neither 'body' nor 'body_hex'"),
        ('{"body_hex": "zz"}', "the body cannot be decoded"),
        ('{"body": "x", "keys": "k"}', "keys, tags or properties are not in the format of"),
    ):
        ran = rockoon("produce", copy, "--messages", stdin=line + "\n", status=1)
        assert f"rockoon: stopped at line 1: {reason}" in ran.err


def test_ndjson_with_keys_and_tags_from_a_packed_file(
    rockoon: Any, topic: str, tmp_path: Path
) -> None:
    lines = [{"id": number, "kind": "even" if number % 2 == 0 else "odd"} for number in range(50)]
    file = tmp_path / "orders.ndjson.gz"
    file.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
    tally = rockoon(
        *("produce", topic, "--file", str(file), "--key-field", "id", "--tag-field", "kind"),
        "--json",
    ).json
    assert (tally["sent"], tally["acknowledged"], tally["failed"]) == (50, 50, 0)

    read = [json.loads(line) for line in rockoon("consume", topic, "--json").out.splitlines()]
    assert sorted(json.loads(each["body"])["id"] for each in read) == list(range(50))
    for each in read:
        body = json.loads(each["body"])
        assert each["keys"] == [str(body["id"])]
        assert each["tags"] == body["kind"]
        assert each["message_id"] == each["properties"]["UNIQ_KEY"]
    odd = rockoon("consume", topic, "--tags", "odd").out.splitlines()
    assert [json.loads(line)["kind"] for line in odd] == ["odd"] * 25


def test_a_line_that_is_no_json_stops_it_and_what_was_sent_is_acknowledged(
    rockoon: Any, topic: str
) -> None:
    ran = rockoon("produce", topic, "--key-field", "id", stdin='{"id": 1}\nnonsense\n', status=1)
    assert "rockoon: stopped at line 2: the line is not JSON" in ran.err
    assert ran.out.startswith("1 of 1 messages acknowledged")
    assert rockoon("consume", topic).out == '{"id": 1}\n'


@pytest.mark.parametrize("option", ["--key-field", "--tag-field"])
def test_a_field_that_a_line_does_not_have_stops_it(rockoon: Any, topic: str, option: str) -> None:
    ran = rockoon("produce", topic, option, "id", stdin='{"id": 1}\n{"ID": 2}\n', status=1)
    assert "rockoon: stopped at line 2: the object has no field 'id'" in ran.err
    assert ran.out.startswith("1 of 1 messages acknowledged")
    # A message that states it has no key.
    rockoon("produce", topic, option, "id", stdin='{"id": null}\n')


def test_bytes_that_are_no_text_come_back_as_they_were(rockoon: Any, topic: str) -> None:
    rockoon("produce", topic, stdin=b"\xff\xfe\n")
    assert json.loads(rockoon("consume", topic, "--json").out)["body_hex"] == "fffe"


def test_where_reading_starts(rockoon: Any, topic: str) -> None:
    # With one key all go to one queue, in order.
    lines = [json.dumps({"k": "same", "n": number}) for number in range(5)]
    rockoon("produce", topic, "--key-field", "k", stdin="\n".join(lines))

    def numbers(*arguments: str) -> list[int]:
        out = rockoon("consume", topic, *arguments).out
        return [json.loads(line)["n"] for line in out.splitlines()]

    assert numbers() == [0, 1, 2, 3, 4]
    assert numbers("--from", "3") == [3, 4]
    assert numbers("--from", "last") == []
    assert numbers("--from", "1h") == [0, 1, 2, 3, 4]
    assert numbers("--from", "2100-01-01T00:00") == []
    assert numbers("--from", "21000101000000") == []
    assert numbers("--from", "20010101000000") == [0, 1, 2, 3, 4]
    assert numbers("--from", "tail:2") == [3, 4]
    assert numbers("--from", "CONSUME_FROM_MIN_OFFSET") == []
    assert numbers("--from", "CONSUME_FROM_FIRST_OFFSET") == [0, 1, 2, 3, 4]
    assert numbers("--max-messages", "2") == [0, 1]


def test_a_group_goes_on_where_it_stopped(rockoon: Any, topic: str) -> None:
    rockoon("produce", topic, stdin="\n".join(f"first {n}" for n in range(10)))
    group = f"{topic}-group"
    first = rockoon("consume", topic, "--group", group, "--from", "first", "--max-messages", "4")
    assert len(first.out.splitlines()) == 4
    rest = rockoon("consume", topic, "--group", group)
    assert len(rest.out.splitlines()) == 6, "exactly what was not printed before"
    assert not set(first.out.splitlines()) & set(rest.out.splitlines())
    assert rockoon("consume", topic, "--group", group).out == ""


def test_a_group_that_starts_behind_what_is_there_says_so(rockoon: Any, topic: str) -> None:
    rockoon("produce", topic, stdin="before\n")
    read = rockoon("consume", topic, "--group", topic)
    assert read.out == ""
    assert f"rockoon: group {topic} had no progress on {topic}: it starts after" in read.err
    assert f"`rockoon offsets reset {topic} {topic} --to-earliest`" in read.err

    rockoon("offsets", "reset", topic, topic, "--to-earliest", "--yes")
    again = rockoon("consume", topic, "--group", topic)
    assert (again.out, again.err) == ("before\n", "")


@pytest.mark.parametrize("group", [None, "followers"])
def test_following_prints_what_comes_until_ctrl_c(
    rockoon: Any, topic: str, group: str | None
) -> None:
    options = ["--group", group] if group else []
    with running(rockoon, "consume", topic, "--follow", "--from", "first", *options) as consumer:
        rockoon("produce", topic, stdin="now\n")
        wait_until(lambda: b"now" in consumer.lines, "the first message")
        rockoon("produce", topic, stdin="later\n")
        wait_until(lambda: b"later" in consumer.lines, "the second message")
        assert consumer.end() == 0
    if group:
        shown = rockoon("offsets", "show", group, topic, "--json").json
        assert shown["total_lag"] == 0, "what was printed is committed on Ctrl-C"


def test_a_line_typed_into_a_pipe_is_sent_at_once_and_ctrl_c_waits_for_the_rest(
    rockoon: Any, topic: str
) -> None:
    with running(rockoon, "produce", topic) as producer:
        producer.write(b"typed\nunfinished")
        wait_until(lambda: rockoon("consume", topic).out == "typed\n", "the line to arrive")
        assert producer.end() == 130
    assert producer.lines[0].startswith(b"1 of 1 messages acknowledged")


def test_a_reader_that_has_seen_enough_is_no_error(rockoon: Any, topic: str) -> None:
    rockoon("produce", topic, stdin="x" * 1000 + "\n" + ("y" * 1000 + "\n") * 3000)
    process = subprocess.Popen(
        [*rockoon.program, "consume", topic],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=rockoon.environment,
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        os.read(process.stdout.fileno(), 10)
        process.stdout.close()
        assert process.stderr.read() == b""
        process.wait(DEADLINE_SECONDS)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["produce", "absent"], "topic 'absent' does not exist: create it with `rockoon topic cr"),
        (["consume", "absent"], "create it with `rockoon topic create absent`"),
        (["consume", "absent", "--group", "g"], "with `rockoon topic create absent`"),
        (["consume", "a|b"], "with `rockoon topic create 'a|b'`"),
        (["produce", ""], "'' is not a topic name: the topic is empty"),
        (["consume", "a b"], "'a b' is not a topic name: "),
        (["produce", "TAKEN", "--file", "no/such.file"], "no/such.file: No such file"),
        (["consume", "TAKEN", "--group", "not a name"], "'not a name' is not a consumer group"),
        (["consume", "TAKEN", "--tags", "||"], "is not a subscription expression"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    rockoon: Any, taken: str, arguments: list[str], sentence: str
) -> None:
    assert sentence in rockoon.fails(*(taken if each == "TAKEN" else each for each in arguments))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--from", "somewhere"], "'somewhere' is none of: first, last, an offset"),
        (["--from", "CONSUME_FROM_HERE"], "'CONSUME_FROM_HERE' is not a start policy"),
        (["--group", "g", "--from", "17"], "use `rockoon offsets reset` to move it"),
        (["--max-messages", "0"], "Input should be greater than or equal to 1"),
    ],
)
def test_wrong_usage_is_explained(rockoon: Any, arguments: list[str], sentence: str) -> None:
    assert sentence in rockoon.misused("consume", "TAKEN", *arguments)


def test_ctrl_c_just_before_a_command_takes_it_over_ends_the_command(cluster: Any) -> None:
    async def work(_connection: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        with Interrupt() as interrupt:
            await interrupt.unless(wait_set(asyncio.Event()))

    with pytest.raises(KeyboardInterrupt):
        with_cluster(",".join(cluster.nameservers), work)


def test_ctrl_c_on_the_last_line_leaves_nothing_to_cancel(
    cluster: Any, topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "lines"
    file.write_text("only")

    class Pressed(LineReader):
        def message(self, line: bytes) -> LineMessage:
            signal.raise_signal(signal.SIGINT)
            return super().message(line)

    async def work(connection: Any) -> Tally:
        return await produce(connection, topic, file, Pressed(), quiet=True)

    tally = with_cluster(",".join(cluster.nameservers), work)
    assert (tally.sent, tally.acknowledged, tally.failed) == (1, 1, 0)
