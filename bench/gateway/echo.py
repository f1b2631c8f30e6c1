"""A server that answers with the request: what a call costs before anybody does something for it.

`python -m bench.gateway.echo own|grpc PORT`, on uvloop: our own HTTP/2, or grpc.aio.
"""

import sys
from typing import Any

import grpc
import uvloop
from grpc import aio

from rockoon_rpc.server import Server

METHOD = "/bench.Echo/Echo"


async def echo(request: bytes, _context: object) -> bytes:
    return request


async def serve(kind: str, port: int) -> None:
    server = Server() if kind == "own" else aio.server()
    service, _, name = METHOD[1:].partition("/")
    handlers: dict[str, Any] = {name: grpc.unary_unary_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    if isinstance(server, Server):
        await server.listen("127.0.0.1", port)
    else:
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], int(sys.argv[2])))
