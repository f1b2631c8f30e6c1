"""Cases that a client program of each language plays against a server."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rpc.peers.relay import relayed
from rpc.peers.targets import Target

MIB = 1 << 20
CASE_SECONDS_MAX = 120.0
OK = "ok"


@dataclass(frozen=True)
class Case:
    """One line of the table.

    Attributes:
        name: for readers.
        order: the name that client programs know, and its arguments.
        server: attribute of `Target` with the address.
    """

    name: str
    order: str
    server: str = "plain"


CASES: Sequence[Case] = (
    Case("unary calls", "unary"),
    Case("stream of requests", "client-stream"),
    Case("stream of answers", "server-stream"),
    Case("streams both ways", "bidirectional"),
    Case("messages of 1 MiB", f"long {MIB}"),
    Case("messages of 20 MiB", f"long {20 * MIB}"),
    Case("1,000 concurrent calls on one connection", "concurrent 1000 1000"),
    Case("1,500 concurrent calls, 1,000 streams allowed", "concurrent 1500 1000"),
    Case("metadata, text and binary, both ways", "metadata"),
    Case("error with non-ASCII details and trailers", "error"),
    Case("deadline ends call and handler", "deadline"),
    Case("cancellation ends the handler", "cancel"),
    Case("server leaves: calls in progress and later ones succeed", "leave", "leaving"),
    Case("keepalive pings on a silent stream", "keepalive", "plain"),
    Case("unknown method: UNIMPLEMENTED", "unknown-method"),
    Case("too long message: RESOURCE_EXHAUSTED", f"too-long {2 * MIB}", "short"),
    Case("gzip: UNIMPLEMENTED with a text that says so", "gzip"),
    Case("all kinds of calls over TLS", "tls", "tls"),
)


# Cases that Rockoon's channel does not offer, with reasons.
NOT_OFFERED: Mapping[str, str] = {
    "gzip: UNIMPLEMENTED with a text that says so": "it does not compress.",
}
# Cases that a server fails with gRPC's own client too: (server, case) → reason.
KNOWN_FAULTS: Mapping[tuple[str, str], str] = {
    ("grpcio", "1,500 concurrent calls, 1,000 streams allowed"): (
        "calls of grpcio's own client fail too, with REFUSED_STREAM or CANCELLED."
    ),
    ("grpcio", "server leaves: calls in progress and later ones succeed"): (
        "calls that arrive while the server leaves fail with CANCELLED, also those of grpcio's own "
        "client."
    ),
}


class Client:
    """A client program that is running."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def play(self, case: Case, target: Target, pings: "Pings") -> str:
        """Play a case.

        Returns:
            "ok", with a note behind it, or "failed" and a reason.
        """
        order, address = case.order, getattr(target, case.server)
        name, *arguments = order.split()
        if name == "tls":
            arguments.append(str(target.ca))
        if name != "keepalive":
            return await self._asked(name, address, *arguments)
        async with relayed(address, pings.interval_ms / 2e3) as (relay, through):
            said = await self._asked(name, through, str(pings.interval_ms), str(pings.quiet_ms))
        if said == OK and relay.pings < pings.pings_min:
            return f"failed the client has sent {relay.pings} pings"
        return said if said != OK else f"{OK} {relay.pings} pings"

    async def _asked(self, *words: str) -> str:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(" ".join(words).encode() + b"\n")
            async with asyncio.timeout(CASE_SECONDS_MAX):
                line = await stdout.readline()
        except (TimeoutError, ConnectionError) as failure:
            return f"failed no result: {failure!r}"
        return line.decode().strip() or "failed the client program has ended"


@dataclass(frozen=True)
class Pings:
    """How the case of keepalive pings is played.

    Attributes:
        interval_ms: between pings on a silent connection.
        quiet_ms: silence of the call.
        pings_min: that the client must have sent.
    """

    interval_ms: int
    quiet_ms: int
    pings_min: int


# grpc-go and grpc-java allow no shorter interval.
SLOW_PINGS = Pings(10_000, 25_000, 1)
FAST_PINGS = Pings(200, 2_000, 1)


@asynccontextmanager
async def running(
    command: Sequence[object], environment: Mapping[str, str], log: Path
) -> AsyncIterator[Client]:
    """A client program, ended behind the context."""
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *map(str, command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            env=dict(environment),
        )
    try:
        yield Client(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def play_known(client: Client, case: Case, target: Target, name: str, pings: Pings) -> str:
    """Play a case, unless the client does not offer it or the server is known to fail it.

    Args:
        name: of the client.
    """
    if name == "Rockoon" and case.name in NOT_OFFERED:
        return "not offered"
    if (target.name, case.name) in KNOWN_FAULTS:
        return "known fault"
    return await client.play(case, target, pings)
