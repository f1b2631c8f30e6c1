"""Balancers between clients and several gateways: by connection, with cuts, and by call."""

import asyncio
import itertools
import random
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import grpc
from grpc import aio

READ_BYTES = 64 << 10
# Seconds between the start of a connection and its cut.
CUT_SECONDS = (2.0, 45.0)
RESET = struct.pack("ii", 1, 0)
CONNECT_SECONDS_MAX = 2.0
OWN_HEADERS = frozenset({"user-agent", "grpc-accept-encoding"})
UNBOUNDED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


class Balancer:
    """A TCP balancer on an event loop; each connection goes to the next gateway that accepts it.

    Args:
        backends: ports of the gateways.
        chance: if given, each connection is cut once, at a random time.
    """

    def __init__(self, backends: Sequence[int], chance: random.Random | None = None) -> None:
        self._backends = itertools.cycle(backends)
        self._count = len(backends)
        self._chance = chance
        self._opened: set[asyncio.WriteTransport] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self.cuts = 0

    async def serve(self, port: int) -> Callable[[], Coroutine[Any, Any, None]]:
        """Listen; returns how to end it."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", port)

        async def close() -> None:
            server.close()
            for each in list(self._opened):
                each.abort()
            if self._serving:
                await asyncio.wait(self._serving)

        return close

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        found = await self._connect()
        if found is None:
            writer.transport.abort()
            return
        both = (writer.transport, found[1].transport)
        self._opened.update(both)
        cutting = None
        if self._chance is not None:
            seconds = self._chance.uniform(*CUT_SECONDS)
            cutting = asyncio.get_running_loop().call_later(seconds, self._cut, both)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pipe(reader, found[1], both))
                tasks.create_task(self._pipe(found[0], writer, both))
        finally:
            if cutting is not None:
                cutting.cancel()
            self._opened.difference_update(both)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for port in itertools.islice(self._backends, self._count):
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(CONNECT_SECONDS_MAX):
                    return await asyncio.open_connection("127.0.0.1", port)
        return None

    def _cut(self, both: Sequence[asyncio.WriteTransport]) -> None:
        """Reset both sides: bytes on their way are lost."""
        self.cuts += 1
        for each in both:
            each.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            each.abort()

    async def _pipe(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        both: Sequence[asyncio.WriteTransport],
    ) -> None:
        """Copy one direction. The end of one direction closes both, like most balancers do."""
        with suppress(OSError):
            while data := await reader.read(READ_BYTES):
                writer.write(data)
                await writer.drain()
        # Data that is still buffered is sent before the connection closes.
        for each in both:
            each.close()


class CallBalancer(grpc.GenericRpcHandler):
    """A gRPC balancer: each call goes to the next gateway, whatever its connection.

    Args:
        backends: ports of the gateways.
    """

    def __init__(self, backends: Sequence[int]) -> None:
        self._backends = backends
        self._channels: list[aio.Channel] = []
        self._next = 0

    async def serve(self, port: int) -> Callable[[], Coroutine[Any, Any, None]]:
        """Listen; returns how to end it."""
        self._channels = [
            aio.insecure_channel(f"127.0.0.1:{each}", UNBOUNDED) for each in self._backends
        ]
        server = aio.server(options=UNBOUNDED)
        server.add_generic_rpc_handlers((self,))
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()

        async def close() -> None:
            await server.stop(None)
            for each in self._channels:
                await each.close()

        return close

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """Answer any method: messages pass as bytes."""
        return grpc.stream_stream_rpc_method_handler(partial(self._forward, details.method))

    async def _forward(
        self, method: str, requests: AsyncIterator[bytes], context: Any
    ) -> AsyncIterator[bytes]:
        headers = tuple(
            (name, value)
            for name, value in context.invocation_metadata()
            if name not in OWN_HEADERS
        )
        forward: Any = self._channel().stream_stream(method)
        call = forward(requests, metadata=headers, timeout=context.time_remaining())
        try:
            # Some clients wait for the headers of Telemetry before they send.
            await context.send_initial_metadata(await call.initial_metadata())
            async for answer in call:
                yield answer
        except aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "", error.trailing_metadata())
        finally:
            call.cancel()

    def _channel(self) -> aio.Channel:
        """The next gateway that is connected; any if none is."""
        for _ in self._channels:
            self._next = (self._next + 1) % len(self._channels)
            channel = self._channels[self._next]
            if channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY:
                return channel
        return channel


class Balancers:
    """An event loop in a thread that runs balancers; a context manager."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._closers: list[Callable[[], Coroutine[Any, Any, None]]] = []

    def __enter__(self) -> "Balancers":
        self._thread.start()
        return self

    def serve(self, balancer: Balancer | CallBalancer, port: int) -> str:
        """Start a balancer; returns its address."""
        self._closers.append(self._run(balancer.serve(port)))
        return f"127.0.0.1:{port}"

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def __exit__(self, *_: object) -> None:
        for close in self._closers:
            self._run(close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
