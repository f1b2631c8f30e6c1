"""Host names that resolve to addresses of a test, for all lookups of one event loop."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def named() -> Iterator[dict[str, list[str]]]:
    """Yield the addresses by name; other names are resolved as usual. Needs a running loop."""
    loop: Any = asyncio.get_running_loop()
    addresses: dict[str, list[str]] = {}
    look_up = loop.getaddrinfo

    async def getaddrinfo(host: str, port: int, **options: Any) -> list[Any]:
        if host not in addresses:
            found: list[Any] = await look_up(host, port, **options)
            return found
        if not addresses[host]:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [
            entry
            for each in addresses[host]
            for entry in await look_up(each, port, flags=socket.AI_NUMERICHOST, **options)
        ]

    loop.getaddrinfo = getaddrinfo
    try:
        yield addresses
    finally:
        del loop.getaddrinfo
