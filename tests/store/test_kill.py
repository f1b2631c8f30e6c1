"""A broker's process is killed at random moments, repeatedly, on the same directory."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rockoon_format.batch import decode_columns
from support.seeds import seeds
from support.store_directory import recovered, settings

TESTS = Path(__file__).resolve().parent.parent
APPENDER = Path(__file__).with_name("appender.py")


def append_until_killed(root: Path, flush: str, seed: int, lines: int) -> list[list[str]]:
    """Run the appender, kill it after some lines, and return the acknowledged batches."""
    with subprocess.Popen(
        [sys.executable, str(APPENDER), str(root), flush, str(seed)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        text=True,
    ) as process:
        assert process.stdout is not None
        reported = [process.stdout.readline() for _ in range(lines)]
        process.send_signal(signal.SIGKILL)
        reported += process.stdout.readlines()
    # The kill may cut the last line.
    whole = [line.split() for line in reported if line.endswith("\n")]
    assert whole[0][0] == "open"
    return whole[1:]


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("seed", seeds(1))
def test_nothing_acknowledged_is_lost_and_queues_equal_a_rebuild(
    tmp_path: Path, flush: str, seed: int
) -> None:
    choose = random.Random(seed)
    configured = settings(tmp_path, flush=flush, commit_log_file_bytes=65_536)
    acknowledged: list[list[str]] = []
    for generation in range(3):
        acknowledged += append_until_killed(
            tmp_path, flush, seed * 100 + generation, choose.randrange(30, 300)
        )
        owner = recovered(configured)
        assert owner.store.recovery.reason == "recovery point"
        for topic, queue_id, first, count, number in acknowledged:
            for offset in range(int(first), int(first) + int(count)):
                found = owner.store.get(topic, int(queue_id), offset, messages_max=1)
                (body,) = decode_columns(found.frames, found.lengths).bodies
                assert body.rstrip(b"\0") == number.encode()
        owner.store.close()
