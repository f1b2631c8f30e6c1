"""A TCP proxy that a test opens, cuts and freezes, to simulate network failures."""

import asyncio
import contextlib
from types import TracebackType


class TcpGate:
    """Forwards bytes to and from `target` ("host:port"); an async context manager.

    Args:
        target: address to which it connects.
        host: address on which it listens.
        port: port on which it listens; 0: a free port.

    `cut` breaks every connection and refuses new ones; `freeze` keeps all connections and forwards
    nothing; `open` ends both. `forget` freezes the present connections until the gate is closed, as
    if the host of the target had vanished; new connections work. `lose_answers` discards the bytes
    of the target, until `cut`.

    Attributes:
        lost: bytes from the target since `lose_answers`.
    """

    def __init__(self, target: str, host: str = "127.0.0.1", port: int = 0) -> None:
        self.target = target
        self._host = host
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._unused = asyncio.Event()
        self._unused.set()
        self._flowing = asyncio.Event()
        self._forgotten: list[asyncio.Event] = []
        self.lost: bytearray | None = None
        self.port = port

    @property
    def address(self) -> str:
        return f"{self._host}:{self.port}"

    @property
    def connections(self) -> int:
        """Number of connections through the gate."""
        return len(self._writers) // 2

    async def open(self) -> None:
        self._flowing.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._connected, self._host, self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()

    def freeze(self) -> None:
        self._flowing.clear()

    def forget(self) -> None:
        self._flowing.clear()
        self._forgotten.append(self._flowing)
        self._flowing = asyncio.Event()
        self._flowing.set()

    def lose_answers(self) -> bytearray:
        self.lost = bytearray()
        return self.lost

    def thaw(self) -> None:
        self._flowing.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.target.rpartition(":")
        flowing = self._flowing
        with contextlib.suppress(OSError):
            there, onward = await asyncio.open_connection(host, int(port))
            self._writers |= {writer, onward}
            self._unused.clear()
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._pass_on(reader, onward, flowing))
                    tasks.create_task(self._pass_on(there, writer, flowing, answers=True))
            finally:
                self._writers -= {writer, onward}
                if not self._writers:
                    self._unused.set()
        writer.close()

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        flowing: asyncio.Event,
        *,
        answers: bool = False,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if answers and self.lost is not None:
                    self.lost += data
                    continue
                await flowing.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()

    async def __aenter__(self) -> "TcpGate":
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for each in (self._flowing, *self._forgotten):
            each.set()
        await self.cut()
        await self._unused.wait()
