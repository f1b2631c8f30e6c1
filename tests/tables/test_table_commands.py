"""`rockoon table` as a command: its output, its ends, and the lag of a consumer group."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyiceberg.catalog
import pytest
from pyiceberg.utils.config import Config

from rockoon.cli.app import run_command_line
from rockoon.testing.disposable import DisposableCluster
from support.lake import Lake
from support.waiting import DEADLINE_SECONDS

PAGE = Path(__file__).parents[2] / "docs" / "use" / "tables.md"
PROGRAM = (sys.executable, "-m", "rockoon.cli")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(f"sqlite:///{tmp_path}/catalog.db", {"warehouse": (tmp_path / "lake").as_uri()})


@pytest.fixture
def topic(cluster: DisposableCluster) -> str:
    topic = cluster.new_topic("orders", queues_per_broker=1)
    with cluster.connect() as connection:
        for n in range(10):
            connection.send(topic, b"%d" % n)
    return topic


def words(lake: Lake, command: str, topic: str, *options: str) -> list[str]:
    properties = [f"--catalog-property={name}={value}" for name, value in lake.properties.items()]
    table = ("--catalog", lake.uri, "--table", "sales.orders")
    return [*PROGRAM, "table", command, topic, *table, *properties, *options]


def environment(cluster: DisposableCluster) -> dict[str, str]:
    return os.environ | {"ROCKOON_NAMESERVERS": ",".join(cluster.nameservers)}


@dataclass(frozen=True)
class Done:
    status: int
    output: str
    errors: str


@pytest.fixture
def run(
    cluster: DisposableCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Done]:
    """Run a command in this process, which has loaded its modules."""
    monkeypatch.setenv("ROCKOON_NAMESERVERS", ",".join(cluster.nameservers))

    def run(*command: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["rockoon", *command[len(PROGRAM) :]])
        status = run_command_line()
        return Done(status, *capsys.readouterr())

    return run


@contextmanager
def following(
    cluster: DisposableCluster, *command: str
) -> Iterator[tuple[subprocess.Popen[str], Iterator[Any]]]:
    """A running command, and the commits that it prints."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(cluster) | {"PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    with process:
        try:
            yield process, map(json.loads, process.stdout)
        finally:
            process.kill()


RAW = ("--body", "raw", "--create")


def test_once_prints_each_commit_and_the_lag_is_that_of_table_and_group(
    cluster: DisposableCluster, topic: str, lake: Lake, run: Callable[..., Done]
) -> None:
    group = f"{topic}-to-lake"
    done = run(*words(lake, "sync", topic, *RAW, "--once", "--group", group))
    assert (done.status, done.errors) == (0, "")
    assert done.output == "sales.orders: 10 messages\n"
    with cluster.connect() as connection:
        connection.send(topic, b"10")
    found = json.loads(run(*words(lake, "lag", topic, "--json")).output)
    assert (found["total_lag"], len(found["queues"])) == (1, 2)
    shown = run(*words(lake, "lag", topic)).output
    assert "BROKER    QUEUE  TABLE  END  LAG  LOST" in shown
    assert "total lag: 1 message, last commit 2" in shown
    lag = json.loads(run(*PROGRAM, "lag", group, "--json").output)
    assert lag["total_lag"] == 1
    done = run(*words(lake, "sync", topic, *RAW, "--once", "--json"))
    assert json.loads(done.output)["messages"] == 1


@pytest.mark.parametrize(
    ("number", "status", "sentence"),
    [
        (signal.SIGINT, 130, "interrupted: the next run continues at the offsets in sales.orders"),
        (signal.SIGTERM, 0, ""),
    ],
)
def test_a_signal_ends_a_continuous_run_and_the_next_one_continues(
    cluster: DisposableCluster,
    topic: str,
    lake: Lake,
    number: signal.Signals,
    status: int,
    sentence: str,
) -> None:
    command = words(lake, "sync", topic, *RAW, "--json", "--interval", "50ms")
    with following(cluster, *command) as (process, commits):
        assert next(commits)["messages"] == 10
        with cluster.connect() as connection:
            connection.send(topic, b"10")
        commit = next(commits)
        assert commit["messages"] == 1
        assert sum(each["offset"] for each in commit["offsets"]) == 11
        process.send_signal(number)
        assert process.wait(DEADLINE_SECONDS) == status
        assert process.stderr is not None
        assert process.stderr.read().strip().removeprefix("rockoon: ") == sentence
    assert len(lake.rows("sales.orders")) == 11


@pytest.mark.parametrize(
    ("options", "status", "sentence"),
    [
        (("--once",), 1, "table sales.orders does not exist: create it with the columns"),
        (("--once", "--body", "raw"), 1, "table sales.orders does not exist: create it, or add"),
        (("--body", "xml"), 2, "'xml' is not one of json, raw"),
        (("--body", "raw", "--errors-table", "a.b"), 2, "raw bodies always fit the table"),
        (("--from", "yesterday"), 2, "'yesterday' is not a time"),
        (("--interval", "soon"), 2, "'soon' is not a duration"),
        (("--catalog", "nowhere"), 1, "catalogue 'nowhere' is not in PyIceberg's configuration"),
        (("--catalog", "ftp://user:secret@host/x"), 1, "Could not infer the catalog type"),
    ],
    ids=lambda each: str(each)[:30],
)
def test_a_wrong_option_is_an_error_with_a_sentence(
    run: Callable[..., Done],
    topic: str,
    lake: Lake,
    options: tuple[str, ...],
    status: int,
    sentence: str,
) -> None:
    done = run(*words(lake, "sync", topic, *options))
    assert done.status == status
    assert sentence in done.errors.replace("\n", " ")
    assert "Traceback" not in done.errors
    assert "secret" not in done.errors


def test_a_reader_that_ends_early_is_not_a_failure_of_the_catalogue(
    cluster: DisposableCluster, topic: str, lake: Lake
) -> None:
    command = words(lake, "sync", topic, *RAW, "--once")
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        command,
        stdout=writing,
        stderr=subprocess.PIPE,
        env=environment(cluster),
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    os.close(writing)
    assert done.stderr == b""


def test_a_warehouse_that_cannot_be_written_is_an_error_with_a_sentence(
    topic: str, lake: Lake, run: Callable[..., Done]
) -> None:
    lake = Lake(lake.uri, {"warehouse": "file:///proc/self/lake"})
    done = run(*words(lake, "sync", topic, *RAW, "--once"))
    assert done.status == 1
    assert "the catalogue or the files of the table cannot be used" in done.errors


def test_neither_pyspark_nor_java_is_needed_and_a_missing_package_is_named(
    cluster: DisposableCluster, topic: str, lake: Lake
) -> None:
    arguments = words(lake, "sync", topic, *RAW, "--once")[len(PROGRAM) :]
    start = "from rockoon.cli.app import run_command_line; sys.exit(run_command_line())"

    def without(*packages: str) -> Done:
        script = f"import sys; sys.modules.update(dict.fromkeys({packages})); {start}"
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments],
            capture_output=True,
            text=True,
            env=environment(cluster),
            timeout=DEADLINE_SECONDS,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    assert without("pyspark", "py4j") == Done(0, "sales.orders: 10 messages\n", "")
    done = without("pyiceberg")
    assert done.status == 1
    assert "needs pyiceberg: pip install 'rockoon-spark[tables]'" in done.errors


def test_the_commands_and_the_program_of_the_page_run(
    topic: str,
    lake: Lake,
    run: Callable[..., Done],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (
        PAGE.read_text()
        .replace("sync orders", f"sync {topic}")
        .replace("lag orders", f"lag {topic}")
    )
    (commands,) = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    program = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0]
    for name, value in {"uri": lake.uri, **lake.properties}.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name.upper()}", value)
    # PyIceberg has read the environment when it was imported.
    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())
    catalog = pyiceberg.catalog.load_catalog("lake")
    catalog.create_namespace("sales")
    catalog.create_table("sales.orders", pa.schema([("_body", pa.binary())]))
    # The bodies of this topic are numbers, which are no JSON objects.
    commands = commands.replace("--once", "--once --body json --errors-table sales.errors --create")
    synced, lag = (run(*PROGRAM, *shlex.split(line)[1:]) for line in commands.splitlines())
    assert synced == Done(0, "sales.orders: 0 messages; sales.errors: 10\n", "")
    assert (lag.status, lag.errors) == (0, "")
    assert "total lag: 0 messages, last commit" in lag.output
    program = program.replace("rockoon.offsets.orders", f"rockoon.offsets.{topic}")
    exec(compile(program, PAGE, "exec"), {"__name__": "__main__"})
    assert topic in capsys.readouterr().out
