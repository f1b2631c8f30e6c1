"""Alert rules use existing metrics, are documented, and fire at the right time."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
from dashboards.evaluation import EVALUATION_SECONDS, Series, firing, seconds_of, series_of
from dashboards.promql import labels_by_name, labels_left, parsed, selectors

from rockoon_broker import metrics as broker_metrics
from support.kustomize import load_all

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "deploy/prometheus"
RULES = FOLDER / "rockoon-alerts.yml"
TESTS = FOLDER / "rockoon-alerts-test.yml"
# Both sides of each limit.
LIMITS = FOLDER / "rockoon-alerts-limits-test.yml"
PAGE = REPOSITORY / "docs/operate/alerts.md"
KNOWN = labels_by_name()
SECONDS_MAX = 300
# Metrics that have no values between whole numbers.
WHOLE_NUMBERS = (
    "rocketmq_broker_permission",
    "rockoon_ready",
    "rockoon_compaction_refused",
    "rockoon_logs_",
    "rockoon_replicas_missing",
    "rockoon_replica_appends_allowed",
    "rockoon_replica_sound",
    "rockoon_replica_damaged_records",
    "rockoon_journal_shortage",
    "rockoon_spark_job_succeeded)",
    "up{",
)

promtool = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="there is no promtool (Debian's package prometheus has it)",
)


@cache
def rules() -> list[dict[str, Any]]:
    groups = next(load_all(RULES.read_text()))["groups"]
    return [rule for group in groups for rule in group["rules"]]


RULE_NAMES = [rule["alert"] for rule in rules()]


@pytest.mark.parametrize("rule", rules(), ids=RULE_NAMES)
def test_a_rule_asks_for_metrics_and_labels_that_there_are(rule: dict[str, Any]) -> None:
    expression = parsed(rule["expr"])
    for name, chosen in selectors(expression):
        assert name in KNOWN
        assert chosen <= KNOWN[name]
    told = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    assert told <= labels_left(expression, KNOWN)
    assert rule["labels"]["severity"] in ("info", "warning", "critical")


@pytest.mark.parametrize("rule", rules(), ids=RULE_NAMES)
def test_the_value_of_a_rule_is_the_same_whichever_side_of_or_fires(rule: dict[str, Any]) -> None:
    """Otherwise its text prints a forecast as a measured share, such as "986 %"."""
    assert len(set(valued(parsed(rule["expr"])))) == 1


def valued(expression: Any) -> Iterator[str]:
    """Return the possible values of an alert: each side of "or", without the other side of
    comparisons."""
    match expression:
        case promql.BinaryExpr() if str(expression.op) == "or":
            yield from valued(expression.lhs)
            yield from valued(expression.rhs)
        case promql.BinaryExpr() if str(expression.op) in ("and", "unless", "<", ">", "=="):
            yield from valued(expression.lhs)
        case promql.ParenExpr():
            yield from valued(expression.expr)
        case _:
            yield expression.prettify()


@pytest.mark.parametrize("rule", rules(), ids=RULE_NAMES)
def test_a_rule_has_the_address_of_its_section(rule: dict[str, Any]) -> None:
    """The site and a forge make anchors of headings: the words in lower case."""
    headings = re.findall(r"^#+ (.*)$", PAGE.read_text(), flags=re.MULTILINE)
    address, anchor = rule["annotations"]["runbook_url"].split("#")
    assert address == "{{ $externalLabels.rockoon_docs }}/alerts.html"
    assert anchor == rule["alert"].lower()
    assert anchor in {heading.lower() for heading in headings}


def test_a_late_compaction_is_seen_by_what_the_broker_itself_exposes() -> None:
    """A CronJob of the manifests writes no metrics file, and kube-state-metrics may be missing."""
    [rule] = [rule for rule in rules() if rule["alert"] == "RockoonCompactionLate"]
    names = {name for name, _ in selectors(parsed(rule["expr"]))}
    assert names <= {metric.name for metric in broker_metrics.OWN}


def test_every_alert_has_a_paragraph_that_says_what_to_do() -> None:
    sections = re.split(r"^### ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    told = {section.partition("\n")[0]: section.partition("\n")[2] for section in sections}
    assert list(told) == RULE_NAMES
    for name, text in told.items():
        assert 80 < len(text) < 900, name


def test_every_alert_has_a_test_in_which_it_fires() -> None:
    cases = [
        case
        for test in next(load_all(TESTS.read_text()))["tests"]
        for case in test["alert_rule_test"]
    ]
    assert [case["alertname"] for case in cases if case["exp_alerts"]] == RULE_NAMES


def checked(*arguments: str, folder: Path = FOLDER) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ("promtool", *arguments),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def cases(path: Path) -> list[tuple[list[Series], int, str, list[dict[str, str]]]]:
    """Series, time, alert, and the labels of the alerts that must fire then."""
    return [
        (
            series_of(test),
            seconds_of(case["eval_time"]),
            case["alertname"],
            [alert["exp_labels"] for alert in case["exp_alerts"]],
        )
        for test in next(load_all(path.read_text()))["tests"]
        for case in test["alert_rule_test"]
    ]


CASES = [*cases(TESTS), *cases(LIMITS)]


def holds(rule: dict[str, Any]) -> bool:
    """Return whether a rule fires when the files say it does, and only then."""
    return all(
        firing(rule, series, at_seconds)
        == {frozenset(labels.items()) - set(rule["labels"].items()) for labels in expected}
        for series, at_seconds, name, expected in CASES
        if name == rule["alert"]
    )


def altered(rule: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the rule with each of its limits a little higher and a little lower."""
    expression = rule["expr"]
    for number in re.finditer(r"(?<![\w\[.])\d+(\.\d+)?(?![\w\].])", expression):
        value = float(number[0])
        share = 0.005 * value or 1.0
        by = 1.0 if any(name in expression for name in WHOLE_NUMBERS) else share
        for other in (value - by, value + by):
            begin, end = number.span()
            yield rule | {"expr": f"{expression[:begin]}{other!r}{expression[end:]}"}
    lasting = seconds_of(rule.get("for", "0s"))
    for other in (lasting - EVALUATION_SECONDS, lasting + EVALUATION_SECONDS):
        if other >= 0:
            yield rule | {"for": f"{other}s"}


@pytest.mark.parametrize("rule", rules(), ids=RULE_NAMES)
def test_an_alert_fires_when_it_should_and_not_otherwise(rule: dict[str, Any]) -> None:
    assert holds(rule)


@pytest.mark.parametrize("rule", rules(), ids=RULE_NAMES)
def test_a_rule_with_another_limit_is_noticed(rule: dict[str, Any]) -> None:
    for other in altered(rule):
        assert not holds(other), f"{other['expr']} for {other.get('for')}"


@promtool
def test_promtool_takes_the_rules_and_says_the_same() -> None:
    found = checked("check", "rules", RULES.name)
    assert found.returncode == 0, found.stderr
    done = checked("test", "rules", TESTS.name, LIMITS.name)
    assert done.returncode == 0, done.stdout + done.stderr
