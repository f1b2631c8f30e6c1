"""A DNS server on the loopback, so that a name can lead elsewhere while a program runs.

gRPC asks it for targets of the form `dns://127.0.0.1:PORT/NAME:PORT`: no root, no resolv.conf.
Of RFC 1035 it has what a resolver of addresses needs: one question, A records, nothing cached.
"""

import asyncio
import ipaddress
import struct
from types import TracebackType
from typing import Self

_HEADER = struct.Struct(">6H")
_QUESTION_END = struct.Struct(">2H")
# A pointer to the question's name, type A, class IN, lives 0 s, 4 bytes.
_ANSWER = struct.Struct(">HHHIH4s")
_TYPE_A = 1
_ANSWERS = 0x8400


class DnsServer(asyncio.DatagramProtocol):
    """An async context manager.

    Attributes:
        addresses: IPv4 address of each name; a name without one has no address, for now.
    """

    def __init__(self) -> None:
        self.addresses: dict[str, str] = {}
        self._transport: asyncio.DatagramTransport | None = None

    def target(self, name: str, port: int) -> str:
        """What gRPC dials to have the name resolved here."""
        assert self._transport is not None
        _, own = self._transport.get_extra_info("sockname")
        return f"dns://127.0.0.1:{own}/{name}:{port}"

    def datagram_received(self, data: bytes, sender: tuple[str, int]) -> None:
        at, labels = _HEADER.size, []
        while length := data[at]:
            labels.append(data[at + 1 : at + 1 + length].decode())
            at += 1 + length
        (kind, _) = _QUESTION_END.unpack_from(data, at + 1)
        question = data[_HEADER.size : at + 1 + _QUESTION_END.size]
        name = ".".join(labels).lower()
        address = self.addresses.get(name) if kind == _TYPE_A else None
        number = int.from_bytes(data[:2])
        reply = _HEADER.pack(number, _ANSWERS, 1, address is not None, 0, 0) + question
        if address is not None:
            packed = ipaddress.IPv4Address(address).packed
            reply += _ANSWER.pack(0xC000 | _HEADER.size, _TYPE_A, 1, 0, 4, packed)
        assert self._transport is not None
        self._transport.sendto(reply, sender)

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(
            lambda: self, local_addr=("127.0.0.1", 0)
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._transport is not None
        self._transport.close()
