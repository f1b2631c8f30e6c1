"""Honest consumers that open and cancel long polls keep their connections: no budget ends them.

`POLL_SECONDS=60 make soak` is a shorter run than ten minutes.
"""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

import rockoon
from gateway.gateways import START_SECONDS_MAX, gateway_program
from rockoon.local.cluster import LocalCluster
from rockoon.local.directory import choose_port
from rockoon.local.process import end
from rpc.peers import layer
from rpc.peers.languages import environment
from rpc.peers.service import Peers
from rpc.polling_consumers import Report, report_of
from support.eventually import eventually
from support.seeds import seeds

SECONDS = float(os.environ.get("POLL_SECONDS", "600"))
# Consumers and connections of each process: all on one connection, and some on each of ten.
CROWDS = ((500, 1), (500, 10))


async def polled(kind: str, address: str, seconds: float, patience: float, seed: int) -> None:
    """Run all groups of consumers at the same time, and check their reports."""
    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(
                report_of(
                    *(kind, address, *crowd, seconds, patience, f"{seed}{number}"),
                    environment=environment(),
                )
            )
            for number, crowd in enumerate(CROWDS)
        ]
    for each in running:
        check(each.result(), seconds * 500 / patience / 10)


def check(report: Report, polls_min: float) -> None:
    print(report)
    assert report.failed == {}
    assert report.lost == 0
    assert report.cancelled > polls_min
    assert report.answered > 0


@pytest.mark.random
@pytest.mark.parametrize("seed", seeds(1))
async def test_consumers_that_cancel_polls_keep_their_connection(seed: int) -> None:
    service = Peers()
    server = layer.server()
    server.add_generic_rpc_handlers((service.handler(),))
    address = f"127.0.0.1:{await server.listen('127.0.0.1', 0)}"
    try:
        words = ("bare", address, 200, 1, 6.0, 0.4, seed)
        check(await report_of(*words, environment=environment()), 300)
        await eventually(lambda: not service.polls)
        assert service.cancelled_polls > 300
    finally:
        await server.stop(None)


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 300)
@pytest.mark.parametrize("seed", seeds(1))
async def test_a_thousand_consumers_keep_their_connections_to_a_bare_server(seed: int) -> None:
    service = Peers()
    server = layer.server()
    server.add_generic_rpc_handlers((service.handler(),))
    address = f"127.0.0.1:{await server.listen('127.0.0.1', 0)}"
    try:
        await polled("bare", address, SECONDS, 0.7, seed)
        await eventually(lambda: not service.polls)
    finally:
        await server.stop(None)


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 300)
@pytest.mark.parametrize("seed", seeds(1))
async def test_a_thousand_consumers_keep_their_connections_to_a_gateway(
    seed: int, tmp_path: Path
) -> None:
    with LocalCluster(single=True) as cluster:
        async with rockoon.connect(cluster.nameservers) as connected:
            await connected.admin.create_topic("polled", queues_per_broker=8)
        gateway = gateway_program(cluster, "gateway", choose_port(), tmp_path)
        try:
            gateway.launch()
            await asyncio.to_thread(gateway.wait_ready, time.monotonic() + START_SECONDS_MAX)
            await polled("pollers:polled", gateway.address, SECONDS, 3.0, seed)
        finally:
            gateway.signal(signal.SIGTERM)
            await asyncio.to_thread(end, [gateway])
