"""Three broker processes with one log: the leader is killed, repeatedly."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from grpc import aio

import rockoon
from rockoon_core.errors import RockoonError
from rockoon_proto.v1.logs_pb2 import Log
from rockoon_runtime.process import Stop
from support.broker import RunningBroker
from support.etcd import EtcdServer
from support.eventually import answered
from support.log_watch import WatchingLog
from support.nameserver import Nameserver, running_nameserver

NAMES = ("broker-a-0", "broker-a-1", "broker-a-2")
KILLS = 3


@contextmanager
def broker_process(
    name: str, root: Path, nameserver: str, cluster: str, **more: object
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a replica as an operator does; kill it at the end if it still runs. `more` are
    options."""
    options = {
        "name": "broker-a",
        "replica": name,
        "copies": 3,
        "nameservers": nameserver,
        "cluster": cluster,
        "listen": "127.0.0.1:0",
        "store-path": root / name,
        "commit-log-file-bytes": 4 << 20,
        "disk-full-percent": 100,
        "disk-forced-percent": 100,
        **more,
    }
    arguments = [text for key, value in options.items() for text in (f"--{key}", str(value))]
    command = [sys.executable, "-m", "rockoon_broker", *arguments]
    with (root / f"{name}.log").open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def led(nameserver: Nameserver) -> Log:
    async with WatchingLog(nameserver) as watching:
        return await watching.until(lambda log: log.state.leader and log.state.confirmed)


async def created(client: rockoon.Cluster) -> bool:
    try:
        await client.admin.create_topic("orders", queues_per_broker=1, if_absent=True)
    except RockoonError:
        return False
    return True


@pytest.mark.soak
async def test_what_was_acknowledged_is_stored_in_order_whoever_is_killed(
    tmp_path: Path, shared_etcd: EtcdServer, cluster: str
) -> None:
    with ExitStack() as processes:
        async with running_nameserver(cluster=cluster, etcd=(shared_etcd.endpoint,)) as nameserver:

            def start(name: str) -> subprocess.Popen[bytes]:
                starting = broker_process(name, tmp_path, nameserver.address, cluster)
                return processes.enter_context(starting)

            running = {name: start(name) for name in NAMES}
            async with (
                rockoon.connect(nameserver.address, cluster=cluster) as client,
                client.producer() as producer,
            ):
                await answered(lambda: created(client), bool)
                sent = 0
                for _ in range(KILLS):
                    log = await led(nameserver)
                    who = next(
                        each.name
                        for each in log.state.replicas
                        if each.replica_id == log.state.leader
                    )
                    for number in range(sent, sent + 50):
                        await producer.send("orders", b"%d" % number)
                    sent += 50
                    running[who].kill()
                    running[who].wait()
                    # No send fails: the next one waits for the next leader.
                    await producer.send("orders", b"%d" % sent)
                    sent += 1
                    running[who] = start(who)
            log = await led(nameserver)
            address = next(n.address for n in log.nodes if n.store_id == log.state.leader)
            async with aio.insecure_channel(address) as channel:
                bodies = await RunningBroker(address, channel, Stop()).bodies("orders")
            assert list(dict.fromkeys(map(int, bodies))) == list(range(sent))
