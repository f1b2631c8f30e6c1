"""A grpcio server with the health service only, for measurements beside Rockoon's services.

`python -m support.grpcio_server [CERTIFICATE KEY]` prints its port, and serves until its standard
input ends.
"""

import asyncio
import sys
from pathlib import Path

import grpc
import uvloop
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer


async def main(pair: tuple[bytes, bytes] | None) -> None:
    server = aio.server()
    health = HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    await health.set("", health_pb2.HealthCheckResponse.SERVING)
    if pair is not None:
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


if __name__ == "__main__":
    files = [Path(each).read_bytes() for each in sys.argv[1:3]]
    uvloop.run(main((files[1], files[0]) if files else None))
