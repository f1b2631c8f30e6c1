"""Programs that fork or start other programs while they are connected to a cluster."""

import asyncio
import os
import signal
import sys
from textwrap import dedent

import pytest

from rockoon.cluster import Cluster
from support.fake_append_broker import FakeAppendBroker
from support.fake_cluster import FakeCluster
from support.scripted_nameserver import ScriptedNameserver

# With code between fork and exec, as when PySpark starts Java, gRPC's fork handlers run too. While
# its threads work, they log a line each time, and sometimes end the child.
_FORKS_BESIDE_CALLS = """
import subprocess, sys
import rockoon.sync
for _ in range(3):
    with rockoon.sync.connect(sys.argv[1]) as cluster:
        cluster.route("orders")
    subprocess.run(["true"], preexec_fn=lambda: None, check=True)
"""


async def test_a_program_that_called_a_cluster_can_run_code_between_fork_and_exec(
    nameserver: ScriptedNameserver, cluster: Cluster
) -> None:
    environment = os.environ | {"GRPC_VERBOSITY": "INFO"}
    environment.pop("GRPC_ENABLE_FORK_SUPPORT", None)
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _FORKS_BESIDE_CALLS,
        nameserver.address,
        env=environment,
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await asyncio.wait_for(program.communicate(), 60)
    assert program.returncode == 0, said.decode()
    assert "fork" not in said.decode()


# The child prints a line for each use of its parent's connection, and one for a new connection. The
# parent's connection must work before and after the fork.
_BLOCKING = """
import os, sys
import rockoon.sync

with rockoon.sync.connect(sys.argv[1]) as cluster:
    cluster.send("orders", b"before")
    messages = cluster.consume("orders", timeout=5.0)
    consumer = cluster.simple_consumer("billing", {"orders": "*"})
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            for use in (
                lambda: cluster.send("orders", b"x"),
                lambda: cluster.send_many("orders", [b"x"]),
                lambda: next(messages),
                lambda: consumer.receive(),
                lambda: cluster.queues("orders"),
                lambda: cluster.admin,
            ):
                try:
                    print("used", use(), flush=True)
                except rockoon.errors.Closed as error:
                    assert f"opened in process {parent}" in str(error), error
                    print("refused", flush=True)
            cluster.__exit__(None, None, None)
            with rockoon.sync.connect(sys.argv[1]) as own:
                own.send("orders", b"own")
            print("own", flush=True)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    cluster.send("orders", b"after")
    print("parent", flush=True)
"""
_ASYNCIO = """
import asyncio, os, sys
import rockoon

kept = []

async def use_of_parents(parent):
    cluster, producer, reader, receiver = kept
    for use in (
        lambda: producer.send("orders", b"x"),
        lambda: producer.send_many("orders", [b"x"]),
        lambda: reader.poll(),
        lambda: receiver.receive(),
        lambda: cluster.admin.list_groups(),
        lambda: cluster.pull_consumer(),
    ):
        try:
            print("used", await use(), flush=True)
        except rockoon.errors.Closed as error:
            assert f"opened in process {parent}" in str(error), error
            print("refused", flush=True)
    await cluster.__aexit__(None, None, None)
    async with rockoon.connect(sys.argv[1]) as own, own.producer() as producer:
        await producer.send("orders", b"own")
    print("own", flush=True)

async def open_all():
    cluster = await rockoon.connect(sys.argv[1]).__aenter__()
    producer = cluster.producer()
    await producer.send("orders", b"before")
    receiver = cluster.simple_consumer("billing", {"orders": "*"})
    kept.extend((cluster, producer, cluster.pull_consumer(), receiver))

loop = asyncio.new_event_loop()
loop.run_until_complete(open_all())
parent = os.getpid()
child = os.fork()
if child == 0:
    try:
        asyncio.run(use_of_parents(parent))
    finally:
        os._exit(0)
os.waitpid(child, 0)

async def go_on():
    await kept[1].send("orders", b"after")
    await kept[0].__aexit__(None, None, None)

loop.run_until_complete(go_on())
print("parent", flush=True)
"""


@pytest.mark.parametrize("program", [_BLOCKING, _ASYNCIO], ids=["blocking", "asyncio"])
async def test_a_forked_child_cannot_use_its_parents_connection_but_one_of_its_own(
    nameserver: ScriptedNameserver, broker: FakeAppendBroker, program: str
) -> None:
    nameserver.put_topic("orders", {broker.name: 2})
    ran = await asyncio.create_subprocess_exec(
        sys.executable,
        "-W",
        "ignore::DeprecationWarning",
        "-c",
        dedent(program),
        nameserver.address,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        said, complaints = await asyncio.wait_for(ran.communicate(), 30)
    finally:
        if ran.returncode is None:
            os.killpg(ran.pid, signal.SIGKILL)
    assert said.decode().split() == [*["refused"] * 6, "own", "parent"], complaints.decode()


# The child leaves the `with` blocks of its parent, as a worker does that ends by `sys.exit`.
_LEAVING = """
import os, sys
import rockoon.sync

with (
    rockoon.sync.connect(sys.argv[1]) as cluster,
    cluster.push_consumer("billing", {"orders": "*"}, lambda message: None),
    cluster.simple_consumer("shipping", {"orders": "*"}),
):
    if (child := os.fork()) == 0:
        sys.exit(7)
    _, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status))
"""


async def test_a_forked_child_leaves_the_with_blocks_of_its_parent_by_exit() -> None:
    async with FakeCluster() as fake:
        fake.create_topic("orders")
        ran = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "ignore::DeprecationWarning", "-c", _LEAVING, fake.address),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            said, complaints = await asyncio.wait_for(ran.communicate(), 30)
        finally:
            if ran.returncode is None:
                os.killpg(ran.pid, signal.SIGKILL)
        assert (said, complaints) == (b"7\n", b"")
