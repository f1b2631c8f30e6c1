"""A person at a terminal confirms a reset while the group reads on."""

import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rockoon.cli.resets import QUESTIONS_MAX
from support.waiting import DEADLINE_SECONDS

QUESTION = "n: no [n]:"


class Terminal:
    """A command at its terminal.

    Attributes:
        shown: everything that the command has printed.
    """

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self._master = master
        self.shown = ""
        self._seen = 0

    def until(self, text: str) -> str:
        """Wait for a text after the last one; return the output up to it."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while (at := self.shown.find(text, self._seen)) < 0:
            left = deadline - time.monotonic()
            assert select.select([self._master], [], [], max(left, 0))[0], self.shown
            self.shown += self._read()
        before, self._seen = self._seen, at + len(text)
        return self.shown[before : self._seen]

    def say(self, line: str) -> None:
        os.write(self._master, line.encode() + b"\n")

    def end(self) -> int:
        """Read the rest, and return the exit status."""
        while part := self._read():
            self.shown += part
        return self.process.wait(DEADLINE_SECONDS)

    def _read(self) -> str:
        try:
            return os.read(self._master, 1 << 16).decode()
        except OSError:  # The command has ended, and with it the other side.
            return ""


@contextmanager
def terminal(rockoon: Any, *arguments: str) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    command = [*rockoon.program, *arguments]
    with subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=rockoon.environment
    ) as process:
        os.close(slave)
        try:
            yield Terminal(process, master)
        finally:
            process.kill()
            os.close(master)


class ReadGroup:
    """A group that has read a topic of one queue to its end."""

    def __init__(self, rockoon: Any, topic: str) -> None:
        self._rockoon = rockoon
        self.topic = topic
        self.name = f"{topic}-billing"
        self.read(10)

    def read(self, messages: int = 1) -> None:
        self._rockoon("produce", self.topic, stdin="x\n" * messages)
        self._rockoon("consume", self.topic, "--group", self.name, "--from", "first")

    def offset(self) -> int:
        shown = self._rockoon("offsets", "show", self.name, "--json").json
        (queue,) = shown["queues"]
        return int(queue["committed_offset"])

    @contextmanager
    def reset(self) -> Iterator[Terminal]:
        arguments = ("offsets", "reset", self.name, self.topic, "--shift", "-3")
        with terminal(self._rockoon, *arguments) as asked:
            assert " 10   7 " in asked.until(f"Move {self.name} on 1 queues of {self.topic}?")
            yield asked


@pytest.fixture
def group(rockoon: Any, request: pytest.FixtureRequest) -> ReadGroup:
    name = re.sub("[^a-z]+", "-", request.node.name)
    rockoon("topic", "create", name, "--add", "broker-a=1")
    return ReadGroup(rockoon, name)


def test_a_group_that_has_read_since_the_plan_is_shown_again_and_moved_from_there(
    rockoon: Any, group: ReadGroup
) -> None:
    with group.reset() as asked:
        group.read()
        asked.say("y")
        shown = asked.until(QUESTION)
        assert f"{group.name} has read since the plan" in shown
        assert re.search(r"broker-a +0 +10 +11 +7 +8", shown), shown
        group.read()
        asked.say("yes")
        assert re.search(r"broker-a +0 +11 +12 +8 +9", asked.until(QUESTION))
        group.read()
        asked.say("a")
        assert asked.end() == 0
    assert re.search(r"broker-a +0 +13 +10 +-3", asked.shown), "what was moved is printed"
    assert group.offset() == 10
    undo = re.search("`rockoon offsets undo ([0-9a-f]+)`", asked.shown)
    assert undo
    assert "undone" in rockoon("offsets", "undo", undo[1]).out
    assert group.offset() == 13


@pytest.mark.parametrize("answer", ["n", "\x04"])
def test_a_no_to_the_second_question_changes_nothing(group: ReadGroup, answer: str) -> None:
    with group.reset() as asked:
        group.read()
        asked.say("y")
        asked.until(QUESTION)
        asked.say("what?")
        asked.until(QUESTION)
        asked.say(answer)
        assert asked.end() == 1
    assert group.offset() == 11


def test_a_group_that_moves_during_every_question_is_left_with_a_way_out(group: ReadGroup) -> None:
    with group.reset() as asked:
        for _ in range(QUESTIONS_MAX):
            group.read()
            asked.say("y")
            asked.until(QUESTION)
        group.read()
        asked.say("y")
        assert asked.end() == 1
    assert "nothing was changed" in asked.shown
    assert "--yes" in asked.shown.rpartition("nothing was changed")[2]
    assert group.offset() == 10 + QUESTIONS_MAX + 1
