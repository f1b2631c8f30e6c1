"""Echo server on a layer, whose handlers only reply, to measure the layer's cost per call.

`python -m bench.layers.echo LAYER PORT`, on uvloop. LAYER: own, former, grpc. `go/main.go` has the
same methods on grpc-go.
"""

import os
import sys
from collections.abc import AsyncIterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import uvloop
from grpc import aio

SERVICE = "bench.Echo"
# Methods: unary echo; long requests; long answers; a stream echo; a stream that is only counted.
ECHO, IN, OUT, STREAM, COUNT = (
    f"/{SERVICE}/{name}" for name in ("Echo", "In", "Out", "Stream", "Count")
)
LONG_BYTES = 1 << 20
LONG = bytes(LONG_BYTES)


async def echo(request: bytes, _context: object) -> bytes:
    return request


async def long_in(request: bytes, _context: object) -> bytes:
    return str(len(request)).encode()


async def long_out(_request: bytes, _context: object) -> bytes:
    return LONG


async def stream(requests: AsyncIterator[bytes], _context: object) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


async def count(requests: AsyncIterator[bytes], _context: object) -> bytes:
    found = 0
    async for _ in requests:
        found += 1
    return str(found).encode()


def handlers() -> grpc.GenericRpcHandler:
    made: dict[str, Any] = {
        ECHO: grpc.unary_unary_rpc_method_handler(echo),
        IN: grpc.unary_unary_rpc_method_handler(long_in),
        OUT: grpc.unary_unary_rpc_method_handler(long_out),
        STREAM: grpc.stream_stream_rpc_method_handler(stream),
        COUNT: grpc.stream_unary_rpc_method_handler(count),
    }
    by_name = {path.rpartition("/")[2]: handler for path, handler in made.items()}
    return grpc.method_handlers_generic_handler(SERVICE, by_name)


class Classes(NamedTuple):
    """Classes of a layer."""

    Server: Any
    Channel: Any


def layer(name: str) -> Classes:
    """Return the server and the channel of a layer.

    The process of the layer `former` must have the packages of `checkout.COMMIT` on its path.
    Raises ImportError: the former layer would be imported from another folder than its own.
    """
    if name == "own":
        from rockoon_rpc.channel import Channel
        from rockoon_rpc.server import Server

        return Classes(Server, Channel)
    channel = import_module("rockoon_core.http2.channel").Http2Channel
    found = Classes(import_module("rockoon_runtime.http2_server").Http2Server, channel)
    folder = Path(os.environ["FORMER_LAYER"])
    for each in found:
        path = Path(str(sys.modules[each.__module__].__file__))
        if not path.is_relative_to(folder):
            raise ImportError(f"{path} is not in {folder}")
    return found


async def serve(name: str, port: int) -> None:
    if name == "grpc":
        server = aio.server(options=[("grpc.max_receive_message_length", -1)])
        server.add_generic_rpc_handlers((handlers(),))
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
    else:
        server = layer(name).Server()
        server.add_generic_rpc_handlers((handlers(),))
        await server.listen("127.0.0.1", port)
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], int(sys.argv[2])))
