"""The compared layers, and the command lines of their programs."""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.compare.programs import CACHE, ROOT, Program, is_made, mark, run
from bench.layers import checkout

GO = Path(__file__).parent / "go"


@dataclass(frozen=True)
class Layer:
    """One compared layer.

    Attributes:
        column: heading of its column in the tables.
        name: the argument of `echo.py` and `calls.py`; "go" has another program.
    """

    column: str
    name: str
    environment: Mapping[str, str] = field(default_factory=lambda: {"PYTHONPATH": str(ROOT)})

    def command(self, port: int) -> list[object]:
        if self.name == "go":
            return [go_program(), port]
        return [sys.executable, "-m", "bench.layers.echo", self.name, port]

    def client(self, address: str) -> list[object]:
        return [sys.executable, "-m", "bench.layers.calls", self.name, address]

    def started(self, folder: Path, port: int, before: Sequence[object] = ()) -> Program:
        """Start the layer's echo server. `before`: command that runs it, for example Valgrind.
        Raises ProgramFailed."""
        command, log = [*before, *self.command(port)], folder / f"{self.name}-{port}.log"
        program = Program(self.column, command, log, self.environment)
        try:
            program.wait_listening(port)
        except BaseException:
            program.stop()
            raise
        return program


def go_layer() -> Layer:
    """Return the compiled layer grpc-go. Raises NotHere."""
    go_program()
    # `Program` gives Go's programs one processor; this is Go's own default.
    return Layer("grpc-go", "go", {"GOMAXPROCS": str(os.cpu_count())})


def layers() -> dict[str, Layer]:
    """Return the layers in Python by name. Raises NotHere: the clone does not have the former
    commit."""
    former = checkout.environment()
    return {
        "former": Layer(f"commit {checkout.COMMIT[:7]}", "former", former),
        "own": Layer("this checkout", "own"),
        "grpc": Layer("grpc.aio", "grpc"),
    }


def go_program() -> Path:
    """Compile the echo server on grpc-go if its sources have changed; return its path. Raises
    NotHere: Go is not installed, or its module cannot be fetched."""
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
    return (GO / "go.mod").read_text().rpartition(" v")[2].strip()
