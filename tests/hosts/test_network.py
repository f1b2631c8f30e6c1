"""A network of hosts: what is cut is lost without a word, in the direction that was cut."""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hosts.network import apart, both_ways, why_not

from support.waiting import wait_until

FOLDER = Path(__file__).resolve().parent


def test_both_ways_are_all_directions_between_two_sides() -> None:
    assert both_ways(["a", "b"], ["c"]) == (("a", "c"), ("b", "c"), ("c", "a"), ("c", "b"))


@pytest.mark.parametrize("cut", [(), ("a:b",), ("b:a",), ("a:b", "b:a")], ids=str)
def test_what_is_cut_is_lost_and_what_is_healed_arrives(cut: Sequence[str]) -> None:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    done = subprocess.run(
        apart([sys.executable, str(FOLDER / "two_hosts.py"), *cut]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    heard = {way[-1]: ["second"] if way in cut else ["first", "second"] for way in ("a:b", "b:a")}
    told = [line.split() for line in done.stdout.splitlines()]
    assert {host: words for host, *words in told} == heard


def test_all_that_was_started_apart_ends_with_it_however_it_ends() -> None:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    script = "setsid sleep 600 & readlink /proc/self/ns/net; wait"
    with subprocess.Popen(apart(["sh", "-c", script]), stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        namespace = first.stdout.readline().strip()
        wait_until(lambda: living_in(namespace) >= 2, "its processes")
        first.kill()
    wait_until(lambda: not living_in(namespace), "its processes to end")


def living_in(namespace: str) -> int:
    """How many processes are in a network namespace."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            count += os.readlink(process / "ns" / "net") == namespace
    return count
