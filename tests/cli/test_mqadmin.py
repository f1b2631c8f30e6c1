"""The list of mqadmin's commands and their counterparts, against both programs."""

import re
import shlex
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import typer
from cli.mqadmin_table import PAGE, Counterpart, counterparts, page

from rockoon.cli.app import app

ROOT = Path(__file__).parents[2]
COMMAND = typer.main.get_command(app)
LIST = counterparts()
# Where the jars of RocketMQ are once `make conformance` has fetched them.
JARS = ROOT / ".conformance" / "judge" / "lib"
VERSION = "5.5.0"


def found(text: str) -> tuple[Any, list[str]]:
    """The command that a text names, and the words after its name."""
    program, *words = shlex.split(text)
    assert program == "rockoon", text
    command: Any = COMMAND
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    assert not getattr(command, "commands", {}), f"{text}: no such command"
    return command, words


@pytest.mark.parametrize("each", LIST, ids=lambda each: each.mqadmin)
def test_each_counterpart_is_a_command_that_exists_or_has_a_reason(each: Counterpart) -> None:
    assert each.commands or each.remark, "state why there is no counterpart"
    for example in each.commands:
        command, words = found(example)
        command.make_context("rockoon", words)
    for text in re.findall(r"`(rockoon [^`]+)`", each.remark):
        found(text)


def test_each_command_is_listed_once_and_references_are_to_listed_ones() -> None:
    names = Counter(each.mqadmin for each in LIST)
    assert {name for name, count in names.items() if count > 1} == set()
    for each in LIST:
        for name in re.findall(r"^As `(\w+)`", each.remark):
            assert name in names


def test_the_page_has_the_tables_of_the_list() -> None:
    assert PAGE.read_text() == page(), "PYTHONPATH=tests python -m cli.mqadmin_table"
    assert VERSION in PAGE.read_text()


def test_the_list_has_the_commands_of_the_real_mqadmin() -> None:
    if not (JARS / f"rocketmq-tools-{VERSION}.jar").exists() or shutil.which("java") is None:
        pytest.skip(f"no Java, or no jars of RocketMQ {VERSION}: `make conformance` fetches them")
    main = "org.apache.rocketmq.tools.command.MQAdminStartup"
    ran = subprocess.run(
        ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS}/*", main],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    listed = re.findall(r"^ {3}(\w+) {2,}\S", ran.stdout, re.MULTILINE)
    assert len(listed) > 90, ran
    assert sorted(each.mqadmin for each in LIST) == sorted(listed)
