"""`rockoon up --single`: its own parser accepts the same arguments as the framework."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from rockoon.cli.app import up
from rockoon.cli.single import PlainSingle, plain_single

READ = {
    "up --single": PlainSingle(),
    "up --port 1 --single": PlainSingle(port=1),
    "up --single --dir=a/b --port=65535": PlainSingle(Path("a/b"), 65_535),
    "up --flush sync --single --dir d": PlainSingle(Path("d"), flush="sync"),
}
LEFT = (
    "",
    "up",
    "up --single --help",
    "up --single --access",
    "up --single --port 0",
    "up --single --port 65536",
    "up --single --port x",
    "up --single --port",
    "up --single --flush never",
    "up --single --dir",
    "up --single --dir --port",
    "up kill broker-a --single",
    "--tls-ca x up --single",
    "topic create --single",
)


@pytest.mark.parametrize("line", READ)
def test_the_plainest_form_is_read(line: str) -> None:
    assert plain_single(line.split()) == READ[line]


@pytest.mark.parametrize("line", LEFT)
def test_whatever_else_is_said_is_left_to_the_framework(line: str) -> None:
    assert plain_single(line.split()) is None


def test_a_shell_that_asks_for_completions_is_answered_by_the_framework(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("_ROCKOON_COMPLETE", "complete_bash")
    assert plain_single(["up", "--single"]) is None


def test_defaults_are_those_of_the_command() -> None:
    defaults = {name: each.default for name, each in inspect.signature(up).parameters.items()}
    assert PlainSingle() == tuple(defaults[name] for name in PlainSingle._fields)


def test_it_loads_no_framework() -> None:
    said = "import sys, rockoon.cli.single, rockoon.cli.up; print('typer' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert ended.stdout == "False\n"
