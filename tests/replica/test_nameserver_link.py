"""Copies of a log whose leader is chosen by a real nameserver on a real etcd."""

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from rockoon_core.channels import Channels
from rockoon_node.nameservers import Nameservers
from rockoon_proto.v1.nameserver_pb2 import BROKER
from rockoon_replica.log_state import LogState
from rockoon_replica.nameserver_link import NameserverLink
from rockoon_runtime.process import Stop
from support.etcd import EtcdServer
from support.eventually import eventually
from support.log_copies import copies
from support.log_states import LOG
from support.log_watch import register
from support.nameserver import running_nameserver


async def test_a_log_that_waits_for_its_first_copies_names_those_that_have_registered(
    shared_etcd: EtcdServer, cluster: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="rockoon_replica")
    async with (
        running_nameserver(cluster=cluster, etcd=(shared_etcd.endpoint,)) as nameserver,
        asyncio.TaskGroup() as tasks,
    ):
        nameservers = Nameservers((nameserver.address,), cluster)
        states: list[LogState] = []
        link = NameserverLink(
            nameservers, Channels(None, None), BROKER, LOG, "a", on_state=states.append
        )
        following = tasks.create_task(link.run(Stop()))
        for who, registered in (("a", "broker-a-a"), ("b", "broker-a-a, broker-a-b")):
            await register(nameserver, who)
            line = f"log broker-a starts when all 3 copies have registered; so far: {registered}"
            await eventually(lambda line=line: line in caplog.messages)
        await register(nameserver, "c")
        await eventually(lambda: states)
        following.cancel()
        await nameservers.close()


async def test_replicas_register_elect_and_go_on_when_their_leader_dies_or_leaves(
    tmp_path: Path, shared_etcd: EtcdServer, cluster: str
) -> None:
    async with AsyncExitStack() as stack:
        nameserver = await stack.enter_async_context(
            running_nameserver(cluster=cluster, etcd=(shared_etcd.endpoint,))
        )
        nameservers = Nameservers((nameserver.address,), cluster)
        stack.push_async_callback(nameservers.close)
        logs = await stack.enter_async_context(copies(tmp_path, gated=False))
        logs.cluster, logs.nameserver, logs.nameservers = cluster, nameserver, nameservers
        first = await logs.start()
        sent = [b"one"]
        await first.send(*sent)
        await eventually(lambda: first.replica.state is not None and first.replica.state.confirmed)

        assert await first.replica.hand_over(10)
        second = await logs.leader(other_than=first)
        await second.send(b"two")
        await second.stop()
        third = await logs.leader(other_than=second)
        await third.send(b"three")
        # At another address than before.
        second.target = ""
        await second.start()
        end = await (await logs.leader()).send(b"four")
        await logs.equal(end)
        for copy in logs.all.values():
            assert copy.log.payloads() == [b"one", b"two", b"three", b"four"]
        epochs = sorted(epoch for copy in logs.all.values() for epoch in copy.established)
        assert len(epochs) == len(set(epochs)) >= 3
