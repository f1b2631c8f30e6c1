"""A command that runs as a separate process until a test ends it."""

import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from support.waiting import DEADLINE_SECONDS


class Running:
    """A running command, and its output so far."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.lines: list[bytes] = []
        assert process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, stream: IO[bytes]) -> None:
        for line in stream:
            self.lines.append(line.rstrip(b"\n"))

    def write(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        status = self.process.wait(DEADLINE_SECONDS)
        self._reader.join(DEADLINE_SECONDS)
        assert self.process.stderr is not None
        assert self.process.stderr.read() == b""
        return status


@contextmanager
def running(rockoon: Any, *arguments: str) -> Iterator[Running]:
    process = subprocess.Popen(
        [*rockoon.program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=rockoon.environment,
    )
    with process:
        try:
            yield Running(process)
        finally:
            process.kill()
