"""Gateways in the test's own process, and as programs."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rockoon.local.cluster import LocalCluster
from rockoon.local.process import Node, NodeKind
from rockoon_gateway.server import serve
from rockoon_gateway.settings import GatewaySettings
from rockoon_runtime.process import Stop

START_SECONDS_MAX = 60.0


@dataclass(frozen=True)
class RunningGateway:
    """A running gateway."""

    address: str
    stop: Stop


@asynccontextmanager
async def running_gateway(cluster: LocalCluster, **settings: Any) -> AsyncIterator[RunningGateway]:
    """Run a gateway of a cluster until the block ends; `settings` as of GatewaySettings."""
    stop = Stop()
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def announced(_kind: str, _name: str, at: str) -> None:
        address.set_result(at)

    chosen = {"listen": "127.0.0.1:0", "nameservers": tuple(cluster.nameservers), **settings}
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(
            serve(GatewaySettings(**chosen), stop, announce=announced, quiet_seconds=0.0)
        )
        either: set[asyncio.Future[Any]] = {address, serving}
        await asyncio.wait(either, timeout=START_SECONDS_MAX, return_when=asyncio.FIRST_COMPLETED)
        if not address.done():
            stop.request("it did not start")
            serving.cancel()
            await serving
        try:
            yield RunningGateway(address.result(), stop)
        finally:
            stop.request("the test is over")


def gateway_program(cluster: LocalCluster, name: str, port: int, folder: Path) -> Node:
    """Return a gateway of a cluster on a port that it may share; the test starts it.

    Args:
        name: name of its log in `folder`.
    """
    settings = {
        "name": name,
        "listen": f"127.0.0.1:{port}",
        "nameservers": ",".join(cluster.nameservers),
        "reuse_port": "true",
    }
    given = [f"--{setting.replace('_', '-')}={value}" for setting, value in settings.items()]
    return Node(
        name,
        NodeKind.GATEWAY,
        port,
        [sys.executable, "-m", "rockoon_gateway", *given],
        folder / f"{name}.log",
        environment={},
        on_unexpected_end=lambda _end: None,
    )
