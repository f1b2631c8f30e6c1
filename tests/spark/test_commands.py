"""`rockoon spark ...`: its output and exit status."""

import io
import json
import logging
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from rockoon.cli.app import run_command_line
from rockoon.errors import RockoonError
from rockoon_format.config_json import TopicConfig, TopicConfigs, write_topics
from rockoon_format.generation import encode_current, generation_name
from rockoon_spark import commands
from rockoon_spark.commands.actions import refuse_unusable
from rockoon_spark.commands.arguments import parser
from rockoon_spark.commands.outcomes import Outcome, table
from rockoon_spark.commands.running import (
    held_interrupts,
    plain_interrupts,
    progress_line,
    shown_progress,
)
from rockoon_spark.index.target import index_paths
from support.key_index import Indexed, indexed_one_by_one, keyed, small_settings
from support.spark_processes import BRIEF_JAVA, BRIEF_SETTINGS
from support.waiting import wait_until


def rockoon(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["rockoon", *map(str, arguments)])
    return run_command_line()


def test_an_index_is_built_and_verified_and_queues_are_rebuilt(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    root, target = tmp_path / "broker-a", tmp_path / "index"
    owner = Indexed(small_settings(root))
    owner.send_random(random.Random(21), 40)
    every = owner.every_key()
    owner.close()
    shape = ("--slots", 50, "--units", 64)
    places = ("--store", root, "--target", target)

    assert rockoon(monkeypatch, "spark", "index", *places, *shape, "--whole") == 0
    assert printed(capfd)["keys added"] == f"{len(every):,}"
    assert [path.read_bytes() for path in index_paths(target)] == indexed_one_by_one(every)

    metrics = tmp_path / "verify.prom"
    told = ("--metrics-file", metrics)
    labels = f'{{command="verify",target="{target}"}}'
    assert rockoon(monkeypatch, "spark", "verify", *places, "--json", *told) == 0
    assert f"rockoon_spark_job_succeeded{labels} 1.0" in metrics.read_text()
    verified = json.loads(capfd.readouterr().out)
    assert (verified["keys"], verified["problems"]) == (len(every), [])

    last = index_paths(target)[-1]
    last.write_bytes(last.read_bytes()[:-1] + b"\1")
    assert rockoon(monkeypatch, "spark", "verify", *places, *told) == 1
    assert f"rockoon_spark_job_succeeded{labels} 0.0" in metrics.read_text()
    assert f"rockoon_spark_job_problems{labels} 1.0" in metrics.read_text()
    assert f"rockoon: {last}: its checksum" in capfd.readouterr().err

    queues = ("--store", root, "--target", tmp_path / "consumequeue", "--entries", 10)
    assert rockoon(monkeypatch, "spark", "rebuild", *queues) == 0
    assert rockoon(monkeypatch, "spark", "rebuild", *queues) == 1
    assert "consumequeue exists already" in capfd.readouterr().err

    log = root / "commitlog" / ("0" * 20)
    log.write_bytes(log.read_bytes()[:200] + b"\xff" * 400 + log.read_bytes()[600:])
    again = ("--store", root, "--target", tmp_path / "again")
    assert rockoon(monkeypatch, "spark", "rebuild", *again) == 1
    (sentence,) = (line for line in capfd.readouterr().err.splitlines() if "rockoon: " in line)
    assert "hold no record" in sentence

    places = ("--store", tmp_path / "nowhere", "--target", target)
    assert rockoon(monkeypatch, "spark", "index", *places, *shape) == 1
    assert "is this a store directory?" in capfd.readouterr().err


def test_what_cannot_be_used_is_told_before_spark_starts(tmp_path: Path) -> None:
    # Spark cannot start in this environment.
    command = ("index", "--store", "nowhere", "--target", "index", "--master", "nowhere://")
    ended = subprocess.run(
        [sys.executable, "-m", "rockoon.cli", "spark", *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert "nowhere/commitlog does not exist: is this a store" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    options = parser("rockoon spark").parse_args(
        ["index", "--endpoint", "nowhere", "--target", "index"]
    )
    with pytest.raises(RockoonError, match="not of the form host:port"):
        refuse_unusable(options)


def printed(capfd: pytest.CaptureFixture[str]) -> dict[str, str]:
    lines = capfd.readouterr().out.splitlines()
    return dict(re.split(r" {2,}", line.strip()) for line in lines if "  " in line.strip())


def flip_last_byte(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def test_an_export_goes_on_and_is_verified(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    root, target = tmp_path / "broker-a", tmp_path / "out"
    owner = Indexed(small_settings(root))
    places = ("--store", root, "--target", target)
    for _ in range(10):
        owner.send(keyed("u"))
    # All records are in the last file, to which a broker may be writing.
    assert rockoon(monkeypatch, "spark", "export", *places) == 0
    assert "the last CommitLog file was skipped" in capfd.readouterr().err
    assert rockoon(monkeypatch, "spark", "export", *places, "--whole") == 0
    found = printed(capfd)
    assert (found["messages written"], found["files written"]) == ("10", "1")
    assert (found["last run"], found["gaps"]) == ("1", "0")
    assert float(found["MB/s"]) >= 0

    first = root / "commitlog" / ("0" * 20)
    while owner.store.visible_end <= 16_384:
        owner.send(keyed("u"))
    first.unlink()
    assert rockoon(monkeypatch, "spark", "export", *places, "--whole") == 1
    assert "were deleted before they were exported; " in capfd.readouterr().err
    again = (*places, "--whole", "--allow-data-loss", "--json")
    assert rockoon(monkeypatch, "spark", "export", *again) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["run"], told["gaps"], len(told["notes"])) == (2, 1, 1)
    assert rockoon(monkeypatch, "spark", "export", *places, "--topics", "T") == 1
    assert "has all topics: each run must export the same topics" in capfd.readouterr().err

    for log in ((), ("--store", root)):
        assert rockoon(monkeypatch, "spark", "verify", "--target", target, *log) == 0
        found = printed(capfd)
        assert (found["verified"], found["differences"]) == ("export", "0")
        assert (found["messages compared with the log"] > "0") == bool(log)
    flip_last_byte(next(target.rglob("*.parquet")))
    assert rockoon(monkeypatch, "spark", "verify", "--target", target) == 1
    assert "its checksum differs from the manifest" in capfd.readouterr().err
    owner.close()


def test_compaction_makes_a_generation_that_is_verified(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    root = tmp_path / "broker-a"
    owner = Indexed(small_settings(root))
    for n in range(20):
        owner.send(keyed(keys=f"k{n % 4}"))
    owner.close()
    compacted = TopicConfig(topic="T", attributes={"cleanup.policy": "COMPACTION"})
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "topics.json").write_bytes(write_topics(TopicConfigs({"T": compacted})))

    assert rockoon(monkeypatch, "spark", "compact", "--store", root) == 0
    assert printed(capfd)["records left"] == "4"
    generation = root / "compacted" / generation_name(1)
    assert rockoon(monkeypatch, "spark", "verify", "--target", generation) == 0
    found = printed(capfd)
    assert (found["verified"], found["records"], found["differences"]) == ("generation", "4", "0")
    (root / "compacted" / "current").write_bytes(encode_current(1))
    owner = Indexed(small_settings(root))
    owner.send(keyed(keys="k1"))
    owner.close()
    # The messages of tests are years old.
    lag = ("--max-lag-seconds", "1e12")
    assert rockoon(monkeypatch, "spark", "compact", "--store", root, *lag) == 0
    said = capfd.readouterr()
    assert "below min-dirty-ratio 0.5" in said.out + said.err
    assert not (root / "compacted" / generation_name(2)).exists()
    flip_last_byte(next(generation.glob("*.entries")))
    assert rockoon(monkeypatch, "spark", "verify", "--target", generation) == 1
    assert "its checksum differs from the manifest" in capfd.readouterr().err


def test_queues_are_verified_and_what_is_nothing_of_ours_is_not(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    root = tmp_path / "broker-a"
    owner = Indexed(small_settings(root))
    owner.send_random(random.Random(22), 40)
    owner.close()
    places = ("--store", root, "--target", root / "consumequeue")
    assert rockoon(monkeypatch, "spark", "verify", *places) == 0
    assert printed(capfd)["verified"] == "queues"
    first, second, *_ = sorted((root / "consumequeue").rglob("0" * 20))
    flip_last_byte(first)
    second.unlink()
    assert rockoon(monkeypatch, "spark", "verify", *places) == 1
    complaints = capfd.readouterr().err
    assert f"{first} differs from the log" in complaints
    assert f"{second} is missing" in complaints
    assert [path.name for path in root.iterdir() if path.name.startswith(".")] == []

    assert rockoon(monkeypatch, "spark", "verify", "--target", root / "consumequeue") == 1
    assert "name the log to compare with: --store or --endpoint" in capfd.readouterr().err
    for target, sentence in (
        (root / "commitlog", "contains no index, no queues"),
        (root / "x", "exist"),
    ):
        assert rockoon(monkeypatch, "spark", "verify", "--target", target) == 1
        assert sentence in capfd.readouterr().err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_one_line_on_a_terminal_and_nothing_elsewhere(spark: SparkSession) -> None:
    assert progress_line("index", 61.9, []) == "index: 61 s, planning"
    assert progress_line("index", 1, [("a", 2, 9), ("b", 0, 1)]) == (
        "index: 1 s, 2 of 9 tasks, 0 of 1 tasks"
    )
    terminal, pipe = Terminal(), io.StringIO()
    with shown_progress(spark, "export", terminal), shown_progress(spark, "export", pipe):
        wait_until(lambda: "export: 0 s, planning" in terminal.getvalue(), "a line")
    assert "\n" not in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\033[K")
    assert pipe.getvalue() == ""


def test_figures_of_parts_are_printed_under_their_names() -> None:
    figures = {"log_bytes": 2_000_000, "broker-a": {"is_new": True, "keys": 1234}}
    outcome = Outcome(figures, labels={"keys": "keys found"}).timed(2.0)
    assert table(outcome.figures, outcome.labels).splitlines() == [
        "log bytes  2,000,000",
        "seconds          2.0",
        "MB/s             1.0",
        "broker-a:",
        "  is new        yes",
        "  keys found  1,234",
    ]


# `spark-submit` starts another Java, which takes seconds; the job below also starts one.
@pytest.mark.soak
def test_spark_submit_runs_the_same_command(tmp_path: Path) -> None:
    root, target = tmp_path / "broker-a", tmp_path / "out"
    owner = Indexed(small_settings(root))
    owner.send(keyed("u"))
    owner.close()
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    program = Path(commands.__file__).parent.with_name("__main__.py")
    command = [submit, "--master", "local[1]", "--driver-java-options", BRIEF_JAVA, program]
    job = ["export", "--store", root, "--target", target, "--whole", "--json"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run([*command, *job], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["messages"] == 1
    assert len(list(target.rglob("*.parquet"))) == 1


def test_an_interrupted_job_has_status_130_and_publishes_nothing(tmp_path: Path) -> None:
    root, target, begun = tmp_path / "broker-a", tmp_path / "out", tmp_path / "begun"
    owner = Indexed(small_settings(root))
    owner.send(keyed("u"))
    owner.close()
    # The tasks end, but do not report it.
    (tmp_path / "sitecustomize.py").write_text(
        textwrap.dedent(f"""
            import json, pathlib, sys, threading

            # Each process would compile the PySpark of this archive.
            sys.path[:] = [path for path in sys.path if not path.endswith("pyspark.zip")]

            def never_told(*_, **__):
                pathlib.Path({str(begun)!r}).touch()
                threading.Event().wait()

            if "pyspark.worker" in sys.orig_argv:
                json.dumps = never_told
        """)
    )
    defaults = "".join(f"{name} {value}\n" for name, value in BRIEF_SETTINGS.items())
    (tmp_path / "spark-defaults.conf").write_text(defaults)
    python_path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    job = ["export", "--store", root, "--target", target, "--whole", "--master", "local[1]"]
    with subprocess.Popen(
        [sys.executable, "-m", "rockoon_spark", *job],
        env={
            **os.environ,
            "PYTHONPATH": python_path.rstrip(os.pathsep),
            "SPARK_CONF_DIR": str(tmp_path),
        },
        stderr=subprocess.PIPE,
    ) as process:
        while not begun.exists():
            assert process.poll() is None
            threading.Event().wait(0.01)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 130, said
    # Output of Java itself, before it reads any option of Spark.
    java = "WARNING: Using incubator modules"
    own = [line for line in said.splitlines() if not line.startswith(java)]
    assert own == ["rockoon: interrupted"]
    assert not list(target.rglob("*.parquet"))
    assert list((target / "_staging").iterdir()) == []


def test_an_interrupt_waits_while_spark_starts_and_a_second_one_does_not() -> None:
    def start(interrupts: int) -> None:
        with held_interrupts():
            for _ in range(interrupts):
                os.kill(os.getpid(), signal.SIGINT)
            started.append(interrupts)

    started: list[int] = []
    for interrupts in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            start(interrupts)
    assert started == [1]


def test_an_error_that_an_interrupt_ends_in_is_an_interrupt() -> None:
    def broken_off() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            raise ConnectionResetError

    former = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(KeyboardInterrupt), plain_interrupts():
            broken_off()
        with pytest.raises(ConnectionResetError), plain_interrupts():
            raise ConnectionResetError
    finally:
        signal.signal(signal.SIGINT, former)
        logging.disable(logging.NOTSET)


def test_wrong_usage_has_status_two(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert rockoon(monkeypatch, "spark", "index") == 2
    assert "required: --target" in capfd.readouterr().err
    assert rockoon(monkeypatch, "spark", "index", "--target", "t") == 2
    assert "one of the arguments --store --endpoint is required" in capfd.readouterr().err
    assert (
        rockoon(monkeypatch, "spark", "index", "--store", "s", "--target", "t", "--units", 1) == 2
    )
    assert "2 or more" in capfd.readouterr().err
    assert rockoon(monkeypatch, "spark", "index", "--help") == 0
    assert "usage: rockoon spark index" in capfd.readouterr().out


def test_without_the_package_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "rockoon_spark.commands", raising=False)
    monkeypatch.setitem(sys.modules, "rockoon_spark", None)
    assert rockoon(monkeypatch, "spark", "verify", "--store", "s", "--target", "t") == 1
    (sentence,) = capfd.readouterr().err.splitlines()
    assert "`pip install rockoon-spark`, and Java 17 or newer" in sentence
