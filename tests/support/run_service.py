"""Runs of a service that ends by itself, because of its arguments or its files."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from typing import Any

from rockoon.local import process
from support.waiting import DEADLINE_SECONDS


def run_service(
    service: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a service until it ends, in a fork if the tests can fork services.

    Args:
        service: its name, like `broker`.
        arguments: of its command line.
        environment: all variables of the service; by default those of the tests.

    Returns:
        The exit status, which is -9 after the deadline of the tests, and both outputs.
    """
    command = (sys.executable, "-m", f"rockoon_{service}", *arguments)
    with tempfile.TemporaryFile() as errors:
        running: Any = process.start_program(command, errors, environment or os.environ)
        deadline = threading.Timer(DEADLINE_SECONDS, running.send_signal, [signal.SIGKILL])
        deadline.start()
        running.stdin.close()
        with running.stdout:
            output = running.stdout.read()
        status = running.wait()
        deadline.cancel()
        errors.seek(0)
        return subprocess.CompletedProcess(command, status, output.decode(), errors.read().decode())
