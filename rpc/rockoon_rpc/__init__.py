"""gRPC over HTTP/2 for asyncio: servers and channels. README.md describes the parts."""
