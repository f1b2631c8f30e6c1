"""The layers that are compared, and their programs."""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.compare.fetching import CACHE, ROOT, is_made, mark, run
from bench.compare.programs import Program
from bench.layers import checkout

GO = Path(__file__).parent / "go"


@dataclass(frozen=True)
class Layer:
    """A layer that is compared.

    Attributes:
        column: heads its column of a table.
        name: the argument of `echo.py` and `calls.py`; "go" has another program.
        environment: of its processes.
    """

    column: str
    name: str
    environment: Mapping[str, str] = field(default_factory=lambda: {"PYTHONPATH": str(ROOT)})

    def command(self, port: int) -> list[object]:
        """Of its echo server."""
        if self.name == "go":
            return [go_program(), port]
        return [sys.executable, "-m", "bench.layers.echo", self.name, port]

    def client(self, address: str) -> list[object]:
        """Of a program with its channel."""
        return [sys.executable, "-m", "bench.layers.calls", self.name, address]

    def started(self, folder: Path, port: int, before: Sequence[object] = ()) -> Program:
        """Its echo server. `before`: a program that runs it. Raises ProgramFailed."""
        command, log = [*before, *self.command(port)], folder / f"{self.name}-{port}.log"
        program = Program(self.column, command, log, self.environment)
        try:
            program.wait_listening(port)
        except BaseException:
            program.stop()
            raise
        return program


def go_layer() -> Layer:
    """grpc-go's, compiled. Raises NotHere."""
    go_program()
    # `Program` gives Go's programs one processor; this is Go's own default.
    return Layer("grpc-go", "go", {"GOMAXPROCS": str(os.cpu_count())})


def layers() -> dict[str, Layer]:
    """Those in Python, by name.

    Raises:
        NotHere: the former one is not in this clone.
    """
    former = checkout.environment()
    return {
        "former": Layer(f"commit {checkout.COMMIT[:7]}", "former", former),
        "own": Layer("this checkout", "own"),
        "grpc": Layer("grpc.aio", "grpc"),
    }


def go_program() -> Path:
    """The echo server on grpc-go, compiled where its sources changed.

    Raises:
        NotHere: there is no Go, or its module cannot be fetched.
    """
    folder, names = CACHE / "echo-go", ("go.mod", "main.go")
    content = b"".join((GO / name).read_bytes() for name in names)
    marker = folder / "made"
    if not is_made(marker, content):
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            shutil.copy(GO / name, folder / name)
        run(["go", "-C", folder, "mod", "tidy"])
        run(["go", "-C", folder, "build", "-o", "echo", "."])
        mark(marker, content)
    return folder / "echo"


def go_version() -> str:
    """Of grpc-go."""
    return (GO / "go.mod").read_text().rpartition(" v")[2].strip()
