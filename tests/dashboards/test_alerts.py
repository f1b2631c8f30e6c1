"""Alert rules ask for what there is, are explained, and fire when they should."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from dashboards.promql import labels_by_name, labels_left, parsed, selectors

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "deploy/prometheus"
RULES = FOLDER / "rockoon-alerts.yml"
TESTS = FOLDER / "rockoon-alerts-test.yml"
PAGE = REPOSITORY / "docs/alerts.md"
KNOWN = labels_by_name()
SECONDS_MAX = 300

promtool = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="there is no promtool (Debian's package prometheus has it)",
)


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
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


def test_every_alert_has_a_paragraph_that_says_what_to_do() -> None:
    sections = re.split(r"^### ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    told = {section.partition("\n")[0]: section.partition("\n")[2] for section in sections}
    assert list(told) == RULE_NAMES
    for name, text in told.items():
        assert 80 < len(text) < 900, name


def test_every_alert_has_a_test_in_which_it_fires() -> None:
    cases = [
        case
        for test in yaml.safe_load(TESTS.read_text())["tests"]
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


@promtool
def test_alerts_fire_when_they_should_and_not_otherwise() -> None:
    found = checked("check", "rules", RULES.name)
    assert found.returncode == 0, found.stderr
    done = checked("test", "rules", TESTS.name)
    assert done.returncode == 0, done.stdout + done.stderr


@promtool
@pytest.mark.soak
@pytest.mark.parametrize("name", RULE_NAMES)
@pytest.mark.parametrize("never", [True, False])
def test_a_rule_that_never_or_always_fires_is_noticed(
    tmp_path: Path, name: str, *, never: bool
) -> None:
    content = yaml.safe_load(RULES.read_text())
    for group in content["groups"]:
        for rule in group["rules"]:
            if rule["alert"] == name:
                expression = parsed(rule["expr"]).prettify()
                rule["expr"] = f"({expression}) and on () vector(0) > 1"
                if not never:
                    metric = next(iter(selectors(parsed(rule["expr"]))))[0]
                    rule |= {"expr": metric, "for": "0s"}
    (tmp_path / RULES.name).write_text(yaml.safe_dump(content))
    shutil.copy(TESTS, tmp_path)
    done = checked("test", "rules", TESTS.name, folder=tmp_path)
    assert done.returncode == 1
    assert f"alertname: {name}" in done.stdout + done.stderr
