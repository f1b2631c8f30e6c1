"""Figures of load tests: histograms, ledgers, accounts, shapes, compared profiles."""

import copy
import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from load import ledger
from load.__main__ import is_good
from load.account import Account
from load.checker import Checker
from load.histogram import Histogram
from load.ledger import Kind, LedgerFile
from load.options import parser
from load.run import plan_of
from load.scenarios import SCENARIOS
from support.seeds import seeds

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("seed", seeds(2))
def test_percentiles_are_exact_to_a_bucket(seed: int) -> None:
    chance = np.random.default_rng(seed)
    latencies = np.exp(chance.normal(8, 2, 5000)).astype(np.int64) + 1
    histogram = Histogram()
    for piece in np.array_split(latencies, 7):
        histogram.add(piece)
    ordered = np.sort(latencies)
    for percentile in (50, 90, 99, 99.9, 100):
        exact_ms = ordered[int(np.ceil(len(ordered) * percentile / 100)) - 1] / 1e3
        assert exact_ms <= histogram.percentile_ms(percentile) * 1.000001
        assert histogram.percentile_ms(percentile) <= exact_ms * 1.015
    assert sum(histogram.by_ms().values()) == len(histogram) == 5000
    again = Histogram.from_bytes(histogram.to_bytes())
    assert np.array_equal(again.counts, histogram.counts)
    assert len(Histogram().add_all([histogram, again])) == 10_000


def test_clocks_that_differ_and_very_long_waits_are_counted() -> None:
    histogram = Histogram()
    histogram.add(np.array([-5, 0, 1, 1 << 50]))
    assert len(histogram) == 4
    assert Histogram().summary()["p99"] == 0


@pytest.mark.parametrize("seed", seeds(3))
def test_messages_become_runs_that_say_the_same(seed: int) -> None:
    chance = random.Random(seed)
    messages = [(chance.randrange(3), chance.randrange(40)) for _ in range(chance.randrange(90))]
    rows = ledger.runs_of(
        np.array([stream for stream, _ in messages], np.uint64),
        np.array([number for _, number in messages], np.int64),
    )
    told = [(stream, n) for stream, first, end in rows.tolist() for n in range(first, end)]
    assert sorted(told) == sorted(messages)


def test_a_ledger_is_followed_while_it_is_written(tmp_path: Path) -> None:
    account, checker = Account(), Checker()
    path = tmp_path / "ledger"
    file = LedgerFile(path)
    assert list(file.new_frames()) == []
    account.sent("orders", 7, 20)
    account.acknowledged("orders", 7, 0, 10)
    account.acknowledged("orders", 7, 10, 12)
    account.given("readers", np.full(3, 7, np.uint64), np.array([2, 0, 1]))
    account.given("readers", np.full(2, 7, np.uint64), np.array([1, 3]))
    account.closed(7)
    raw = ledger.encode(Kind.GROUP, "readers\norders") + account.take().ledger
    assert account.take().ledger == b""
    raw += ledger.encode(Kind.END)
    ends = []
    for at in range(0, len(raw), 11):
        with path.open("ab") as written:
            written.write(raw[at : at + 11])
        ends.append(ledger.apply(checker, list(file.new_frames())))
    assert ends == [False] * (len(ends) - 1) + [True]
    verdict = checker.verdict()
    assert (verdict.sent, verdict.acknowledged, verdict.lost) == (20, 12, 12)
    readers = verdict.groups["readers"]
    assert (readers.given, readers.missing, readers.twice) == (4, 8, 1)


def test_every_scenario_is_told_of_and_makes_a_plan() -> None:
    text = subprocess.run(
        [sys.executable, "-m", "load", "run", "--help"],
        cwd=TESTS,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in SCENARIOS:
        assert name in text
        options = parser({}).parse_args(["run", "--scenario", name, "--commit", "abc"])
        plan = plan_of(options, "127.0.0.1:9876")
        assert type(plan).from_json(plan.to_json()) == plan
        assert plan.body_bytes == SCENARIOS[name].number("body_bytes")
    assert "--body-bytes" in text


def test_options_may_stand_in_the_environment_and_the_command_line_wins() -> None:
    environment = {"LOAD_SCENARIO": "large", "LOAD_USERS": "9", "LOAD_RATE": "2.5"}
    options = parser(environment).parse_args(["run", "--users", "3"])
    plan = plan_of(options, "127.0.0.1:9876")
    assert (plan.scenario, plan.users, plan.rate) == ("large", 3, 2.5)


def test_a_name_in_the_environment_that_there_is_not_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        parser({"LOAD_SCENARIO": "everything"})
    assert "LOAD_SCENARIO is 'everything'" in capsys.readouterr().err


def profile(**changes: object) -> dict[str, object]:
    latency = {"p50": 2.0, "p90": 4.0, "p99": 10.0, "p99.9": 20.0, "max": 50.0}
    operation = {"count": 1000, "per_second": 100.0, "latency_ms": latency}
    return {
        "commit": "abc",
        "machine": {"cores": 2, "processor": "x"},
        "load_average_before": 0.1,
        "plan": {"scenario": "mixed", "run": random.randrange(100), "users": 4},
        "operations": {"send": operation, "receive": copy.deepcopy(operation)},
        "processes": {"broker-a": {"cpu_seconds": 5.0, "memory_mib_max": 80.0}},
        **changes,
    }


@pytest.mark.parametrize(
    ("environment", "arguments", "said"),
    [
        ({"LOAD_USER": "3"}, ["run"], "LOAD_USER is no option; did you mean LOAD_USERS?"),
        ({}, ["run", "--minutes", "0"], "'0' is less than 0.01"),
        ({"LOAD_BODY_BYTES": "8"}, ["run"], "'8' is less than 40"),
    ],
)
def test_a_run_that_would_not_be_what_was_meant_is_refused(
    environment: dict[str, str],
    arguments: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        parser(environment).parse_args(arguments)
    assert said in capsys.readouterr().err


def compared(
    tmp_path: Path, a: dict[str, object], b: dict[str, object], *more: str
) -> tuple[int, str]:
    for name, each in (("a", a), ("b", b)):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "profile.json").write_text(json.dumps(each))
    done = subprocess.run(
        [sys.executable, "-m", "load", "compare", *more, str(tmp_path / "a"), str(tmp_path / "b")],
        cwd=TESTS,
        capture_output=True,
        text=True,
        check=False,
        env={"COLUMNS": "120"},
    )
    return done.returncode, done.stdout + done.stderr


def test_a_run_that_is_worse_than_another_makes_comparing_fail(tmp_path: Path) -> None:
    slower = profile()
    slower["operations"]["send"]["latency_ms"]["p99"] = 12.0  # type: ignore[index]
    status, text = compared(tmp_path, profile(), slower)
    assert (status, text.count("worse")) == (1, 1), text
    assert "1.20" in text
    assert "!" not in text
    status, _ = compared(tmp_path, profile(), slower, "--threshold", "0.3")
    assert status == 0
    status, _ = compared(tmp_path, slower, profile())
    assert status == 0


def test_comparing_with_a_run_that_is_not_there_says_what_to_name(tmp_path: Path) -> None:
    """One sentence, no traceback."""
    nowhere = tmp_path / "nowhere"
    done = subprocess.run(
        [sys.executable, "-m", "load", "compare", str(nowhere), str(nowhere)],
        capture_output=True,
        text=True,
        check=False,
        cwd=TESTS,
    )
    assert done.returncode == 2
    assert "No profile to read" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"machine": {"cores": 2, "processor": "y"}}, "machines differ: processor is x and y"),
        ({"plan": {"scenario": "mixed", "users": 5}}, "runs differ: users is 4 and 5"),
        ({"load_average_before": 7.5}, "load averages 0.1 and 7.5"),
    ],
)
def test_what_cannot_be_compared_is_said(
    changes: dict[str, object], said: str, tmp_path: Path
) -> None:
    _, text = compared(tmp_path, profile(), profile(**changes))
    assert said in text


def test_a_run_is_good_when_nothing_failed_and_the_checker_found_nothing() -> None:
    fine = {"failures": 0, "exceptions": {}, "verdict": {"is_good": True}}
    assert is_good(fine)
    assert is_good({**fine, "verdict": None})
    for fault in (
        {"failures": 1},
        {"exceptions": {"KeyError": 1}},
        {"verdict": {"is_good": False}},
    ):
        assert not is_good({**fine, **fault})
