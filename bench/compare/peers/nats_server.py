"""NATS in `make compare`: one nats-server with JetStream in files, and the client nats-py."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.compare import fetching
from bench.compare.peer import ClientCommand, Peer, python_client
from bench.compare.programs import Program
from rockoon.local.ports import PortBlock

MODULE = "github.com/nats-io/nats-server/v2"
VERSION = "v2.15.2"
NATS_PY = "NATS, nats-py"


class NatsPeer(Peer):
    name = "NATS"
    columns = (NATS_PY,)

    def __init__(self, ports: PortBlock) -> None:
        super().__init__(ports)
        self._program = Path()
        self._python = Path()
        self._server: Program | None = None

    def prepare(self) -> Mapping[str, str]:
        self._program = fetching.go(MODULE, VERSION)
        self._python = fetching.python()
        return {"nats-server": VERSION, "nats-py": fetching.python_version("nats-py")}

    def start(self, folder: Path, *, sync: bool) -> str:
        port = self.ports.choose()
        settings = folder / "nats.conf"
        settings.write_text(
            f'listen: "127.0.0.1:{port}"\n'
            f'jetstream {{ store_dir: "{folder / "store"}"\n'
            + ("  sync_interval: always\n" if sync else "")
            + "}\n"
        )
        command = [self._program, "-c", settings]
        self._server = Program("nats-server", command, folder / "nats.log")
        self._server.wait_listening(port)
        return f"nats://127.0.0.1:{port}"

    def pids(self) -> Sequence[int]:
        assert self._server is not None
        return [self._server.pid]

    def clients(self) -> Sequence[ClientCommand]:
        return [python_client(NATS_PY, self._python, "nats_client")]

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None
