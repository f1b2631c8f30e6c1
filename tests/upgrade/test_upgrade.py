"""`make upgrade` without clusters: it notices each kind of loss, and says why it cannot run."""

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from upgrade.__main__ import REFUSED
from upgrade.former import compile_kernel
from upgrade.photograph import differences, offsets_alone

from bench.compare.programs import ROOT, NotHere

LEFT: dict[str, Any] = {
    "topics": {"plain": {"permissions": 6}},
    "messages": {"plain": {"plain@broker-a:0": [[0, "id-0", "00"], [1, "id-1", "01"]]}},
    "progress": [{"group": "reader", "queue": {"topic": "plain"}, "offset": "7", "epoch": "3"}],
    "in flight": {"fifo": [{"unsettled": 3}]},
}


def lose_message(found: dict[str, Any]) -> None:
    found["messages"]["plain"]["plain@broker-a:0"].pop()


def change_body(found: dict[str, Any]) -> None:
    found["messages"]["plain"]["plain@broker-a:0"][1][2] = "02"


def revive_topic(found: dict[str, Any]) -> None:
    found["topics"]["gone"] = {"permissions": 6}


def lose_topic(found: dict[str, Any]) -> None:
    del found["topics"]["plain"]


def move_group(found: dict[str, Any]) -> None:
    found["progress"][0]["offset"] = "8"


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lose_message, "/messages/plain/plain@broker-a:0: was"),
        (change_body, "/messages/plain/plain@broker-a:0/1/2: was '01', is '02'"),
        (revive_topic, "/topics/gone: is new"),
        (lose_topic, "/topics/plain: is missing"),
        (move_group, "/progress/0/offset: was '7', is '8'"),
    ],
)
def test_each_difference_of_two_photographs_is_reported(
    change: Callable[[dict[str, Any]], None], place: str
) -> None:
    found = copy.deepcopy(LEFT)
    assert list(differences(LEFT, found)) == []
    change(found)
    (line,) = differences(LEFT, found)
    assert line.startswith(place)


def test_after_an_import_of_offsets_only_what_an_export_has_is_compared() -> None:
    found = copy.deepcopy(LEFT)
    found["progress"][0]["epoch"] = "9"
    found["in flight"] = {}
    assert list(differences(offsets_alone(LEFT), offsets_alone(found))) == []
    found["progress"][0]["offset"] = "6"
    assert list(differences(offsets_alone(LEFT), offsets_alone(found)))


def test_only_a_refusal_of_the_offset_service_leads_to_an_import() -> None:
    text = "LocalClusterError: {} did not start (exit status 74); the end of its log:\n    {}"
    refusal = REFUSED.search(text.format("offset-0", "rockoon-offset: the journal is damaged"))
    assert refusal is not None
    assert refusal.group(1) == "rockoon-offset: the journal is damaged"
    assert REFUSED.search(text.format("broker-a", "rockoon-broker: no")) is None
    assert REFUSED.search("") is None


def test_a_clone_without_the_former_commit_says_what_to_do() -> None:
    command = [sys.executable, "-m", "upgrade", "--commit", "0123456" + "0" * 33]
    done = subprocess.run(
        command,
        env={"PYTHONPATH": f"{ROOT / 'tests'}:{ROOT}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done
    assert done.stderr.startswith("make upgrade cannot run: commit 012345600000")
    assert "--unshallow" in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_a_compiler_no_kernel_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotHere, match="there is no cargo"):
        compile_kernel(tmp_path, tmp_path / "kernel")
