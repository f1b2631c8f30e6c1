"""gRPC's own HTTP/2 (RFC 9113), as far as gRPC needs it, on asyncio: a quarter of grpcio's CPU.

`frames` and `headers` are bytes, `connection` is one side of a connection, `messages` the part of a
stream that sends and receives gRPC's messages. The server is `rockoon_runtime.http2_server`, the
client `channel`.
"""
