"""Runs the `rockoon` command many times, each in its own process, and imports its modules once.

The imports of a command take a third of a second, and its work much less. This program imports all
modules, starts no thread, and forks for each command: `python -m support.command_forks` reads one
JSON job per line and writes the exit status.
"""

import contextlib
import gc
import importlib
import io
import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import rockoon
from rockoon.local.node_maker import THREADS

# No command imports these packages. Some of them start threads, which a fork would lack.
NOT_LOADED = ("rockoon.arrow", "rockoon.testing", "rockoon.tracing")
OTHERS = ("encodings.idna", "rich.console", "rich.table", "uvloop", "zoneinfo")


def loaded() -> Iterator[str]:
    """Return all modules that a command may import."""
    for module in pkgutil.walk_packages(rockoon.__path__, "rockoon."):
        if not module.name.startswith(NOT_LOADED) and not module.name.endswith(".__main__"):
            yield module.name
    yield from OTHERS


class CommandForks:
    """Runs commands in forks of one program.

    Args:
        directory: for the input and output of the commands.
        environment: of the commands.
    """

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self._directory = directory
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.command_forks"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**environment, **THREADS, "PYTHONPATH": str(Path(__file__).parent.parent)},
            text=True,
        )

    def run(
        self, arguments: tuple[str, ...], stdin: bytes, output: str = ""
    ) -> tuple[int, str, str]:
        """Run `rockoon` with these arguments; return exit status, output and error output.

        Args:
            output: file or device for the output, which is then not returned.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        files = [str(self._directory / name) for name in ("in", "out", "err")]
        Path(files[0]).write_bytes(stdin)
        Path(files[1]).write_bytes(b"")
        self._process.stdin.write(
            json.dumps([[files[0], output or files[1], files[2]], arguments]) + "\n"
        )
        self._process.stdin.flush()
        status = int(self._process.stdout.readline())
        return status, Path(files[1]).read_text(), Path(files[2]).read_text()

    def __enter__(self) -> "CommandForks":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate()


def become_command(files: list[str], arguments: list[str]) -> None:
    """Run the command in this fork, and end with its exit status."""
    flags = (os.O_RDONLY, *[os.O_WRONLY | os.O_CREAT | os.O_TRUNC] * 2)
    for descriptor, (path, how) in enumerate(zip(files, flags, strict=True)):
        os.dup2(os.open(path, how, 0o644), descriptor)
    # Input that the parent process has read ahead does not belong to the command.
    sys.stdin = os.fdopen(0, closefd=False)
    sys.argv = ["rockoon", *arguments]
    status = 70
    try:
        status = importlib.import_module("rockoon.cli.app").run_command_line()
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001 - the fork's root
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(status)


def serve() -> None:
    for module in loaded():
        importlib.import_module(module)
    # The first command creates all subcommands, and imports typer's modules for their options.
    sys.argv = ["rockoon", "topic", "list", "--nameservers=nowhere"]
    with contextlib.redirect_stderr(io.StringIO()):
        importlib.import_module("rockoon.cli.app").run_command_line()
    # A garbage collection in a fork would copy the pages of all modules.
    gc.freeze()
    for line in sys.stdin:
        files, arguments = json.loads(line)
        child = os.fork()
        if child == 0:
            become_command(files, arguments)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
