"""`rockoon spark ...`: what is printed, and the exit status."""

import json
import random
import re
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rockoon.cli.app import run_command_line
from rockoon_spark.index_target import index_paths
from support.key_index import Indexed, indexed_one_by_one, small_settings


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
    lines = capfd.readouterr().out.splitlines()
    printed = dict(re.split(r" {2,}", line) for line in lines if "  " in line)
    assert printed["keys"] == f"{len(every):,}"
    assert [path.read_bytes() for path in index_paths(target)] == indexed_one_by_one(every)

    assert rockoon(monkeypatch, "spark", "verify", *places, "--json") == 0
    verified = json.loads(capfd.readouterr().out)
    assert (verified["keys"], verified["problems"]) == (len(every), [])

    last = index_paths(target)[-1]
    last.write_bytes(last.read_bytes()[:-1] + b"\1")
    assert rockoon(monkeypatch, "spark", "verify", *places) == 1
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


def test_wrong_usage_has_status_two(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert rockoon(monkeypatch, "spark", "index") == 2
    assert "--store, --target" in capfd.readouterr().err
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
