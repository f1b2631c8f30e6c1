"""`rockoon up` as a process, and commands for its cluster."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.waiting import DEADLINE_SECONDS, wait_until

ROCKOON = (sys.executable, "-m", "rockoon.cli")


class Up:
    """A running `rockoon up`."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process = process
        self.output = output
        wait_until(
            lambda: b"Ctrl-C stops it" in output.read_bytes() or process.poll() is not None,
            "the cluster to be ready",
        )
        self.shown = output.read_text()
        assert process.poll() is None, self.shown

    @property
    def processes(self) -> dict[str, int]:
        found = re.findall(r"^(\S+) +127\.0\.0\.1:\d+ +(\d+)$", self.shown, re.MULTILINE)
        return {name: int(pid) for name, pid in found}

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_SECONDS)


@contextmanager
def up(directory: Path, port: int, *options: str) -> Iterator[Up]:
    output = directory.with_suffix(".out")
    with output.open("wb") as stream:
        process = subprocess.Popen(
            [*ROCKOON, "up", "--dir", str(directory), "--port", str(port), *options],
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    with process:
        try:
            yield Up(process, output)
        finally:
            process.kill()


def run(port: int, *arguments: str, stdin: str = "") -> str:
    ended = subprocess.run(
        [*ROCKOON, *arguments, "--nameservers", f"127.0.0.1:{port}"],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended
    return ended.stdout
