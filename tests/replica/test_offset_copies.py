"""An offset service with three copies of its journal: groups continue from their progress when its
leader stops, and no other copy replies instead.
"""

from pathlib import Path
from typing import Any

import pytest
from grpc import aio

import rockoon
from rockoon.admin.logs import LogDescription
from rockoon_core.errors import NotLeader, OffsetServiceUnavailable, RockoonError
from rockoon_core.failed_call import from_rpc_error
from rockoon_core.message_queue import queue_to_wire
from rockoon_offset.journal.journal_files import generations
from rockoon_offset.journal.journal_log import FILES_HELD_MAX
from rockoon_offset.server import serve
from rockoon_proto.v1 import offset_pb2 as pb
from rockoon_proto.v1.offset_pb2_grpc import OffsetServiceStub
from rockoon_runtime.process import Fatal, Stop
from support.etcd import EtcdServer
from support.eventually import answered, eventually
from support.offset_services import LOG, TOPIC, counting, until, world
from support.waiting import DEADLINE_SECONDS

GROUP = "billing"
NAMES = ("offset-0", "offset-1", "offset-2")


class Reading:
    """A group that reads numbers, one after another, and its stored progress."""

    def __init__(self, client: rockoon.Cluster) -> None:
        self._client = client
        self.seen: list[int] = []
        self._sent = 0

    async def take(self, message: rockoon.Message) -> None:
        self.seen.append(int(message.body))

    async def read(self, count: int) -> int:
        """Join a member, read this many more, and leave; return the stored progress."""
        async with (
            self._client.producer() as producer,
            self._client.push_consumer(GROUP, {TOPIC: "*"}, self.take, consume_from="first"),
        ):
            await self.send(producer, count)
        (progress,) = await self._client.admin.progress(GROUP, TOPIC)
        return progress.offset

    async def send(self, producer: Any, count: int) -> None:
        for number in range(self._sent, self._sent + count):
            await producer.send(TOPIC, b"%d" % number)
        self._sent += count
        await eventually(lambda: len(self.seen) >= self._sent)


async def led_by_three(client: rockoon.Cluster) -> LogDescription:
    return await until(client, counting(3))


async def refusal_of(address: str) -> RockoonError:
    async with aio.insecure_channel(address) as channel:
        stub: Any = OffsetServiceStub(channel)
        request = pb.HeartbeatRequest(group=GROUP, member_id="m", instance="i", mode=pb.CLUSTERING)
        with pytest.raises(aio.AioRpcError) as refused:
            await stub.Heartbeat(request)
        return from_rpc_error(refused.value, OffsetServiceUnavailable)


async def test_a_group_goes_on_with_three_copies_of_what_one_service_had_and_without_their_leader(
    tmp_path: Path, shared_etcd: EtcdServer, cluster: str
) -> None:
    async with world(tmp_path, shared_etcd, cluster) as (services, client):
        reading = Reading(client)
        # A pod's name, if it is the only one.
        services.start("offset-0", copies=1, log="offset-0")
        assert await reading.read(10) == 10
        await services.stop("offset-0")
        # Empty copies that start first hold no promise.
        for name in ("offset-1", "offset-2", "offset-0"):
            services.start(name, copies=3)
        log = await led_by_three(client)
        assert await reading.read(10) == 20
        for follower in log.replicas:
            if not follower.is_leader:
                assert follower.address is not None
                assert isinstance(await refusal_of(follower.address), NotLeader)
        # The leader stops while a member reads.
        async with (
            client.producer() as producer,
            client.push_consumer(GROUP, {TOPIC: "*"}, reading.take, consume_from="first"),
        ):
            await reading.send(producer, 10)
            assert log.leader is not None
            await services.stop(log.leader.name)
            await reading.send(producer, 10)
        assert reading.seen == list(range(40))
        assert (await client.admin.progress(GROUP, TOPIC))[0].offset == 40
        # It is one of two followers now, and may lead again.
        services.start(log.leader.name, copies=3)
        await led_by_three(client)
        assert await reading.read(10) == 50


async def test_a_copy_that_stays_away_lets_the_others_delete_old_journals(
    tmp_path: Path, shared_etcd: EtcdServer, cluster: str
) -> None:
    async with world(tmp_path, shared_etcd, cluster) as (services, client):
        for name in NAMES:
            services.start(name, copies=3)
        log = await led_by_three(client)
        assert await Reading(client).read(1) == 1
        assert log.leader is not None
        journal = tmp_path / log.leader.name / "journal"
        away = next(each for each in log.replicas if not each.is_leader)
        await services.stop(away.name)
        service = await client.wait_offset_service(DEADLINE_SECONDS)
        queues = [queue_to_wire(queue) for queue in (await client.route(TOPIC)).queues]
        request = pb.ResolveRequest(group=GROUP, queues=queues)
        (start,) = (await service.Resolve(request, metadata=client.metadata)).starts
        most = commits = 0
        while most <= FILES_HELD_MAX + 2 or len(generations(journal, "journal")) > 3:
            commits += 1
            entry = pb.CommitEntry(
                queue=queues[0],
                offset=start.offset,
                epoch=start.epoch,
                metadata=f"{commits}".ljust(1000, "-"),
            )
            request = pb.CommitRequest(group=GROUP, entries=[entry])
            reply = await service.Commit(request, metadata=client.metadata)
            assert not reply.results[0].HasField("error"), reply
            most = max(most, len(generations(journal, "journal")))
        await until(client, counting(2))
        services.start(away.name, copies=3)
        await led_by_three(client)
        (progress,) = await client.admin.progress(GROUP, TOPIC)
        assert progress.metadata == f"{commits}".ljust(1000, "-")


async def committed(client: rockoon.Cluster) -> int:
    """Return the group's offset; -1 while no offset service replies."""
    try:
        (progress,) = await client.admin.progress(GROUP, TOPIC)
    except RockoonError:
        return -1
    return progress.offset


async def test_an_offset_service_goes_back_to_one_copy_and_to_three_while_a_member_reads(
    tmp_path: Path, shared_etcd: EtcdServer, cluster: str
) -> None:
    async with world(tmp_path, shared_etcd, cluster) as (services, client):
        reading = Reading(client)
        for name in NAMES:
            services.start(name, copies=3)
        log = await led_by_three(client)
        # Not the leader: it hands over first.
        stays, other = [each for each in log.replicas if not each.is_leader]
        async with (
            client.producer() as producer,
            client.push_consumer(GROUP, {TOPIC: "*"}, reading.take, consume_from="first"),
        ):
            await reading.send(producer, 10)
            # Too early: the others count.
            await services.stop(stays.name)
            with pytest.raises(Fatal, match="rockoon log copies offset 1"):
                await serve(services.settings(stays.name, copies=1), Stop())
            services.start(stays.name, copies=3)
            await led_by_three(client)
            await client.admin.logs.set_copies(LOG, 1, stays.id)
            await reading.send(producer, 10)
            await until(client, counting(1))
            await reading.send(producer, 10)
            # One of the others still runs when it starts alone.
            await services.stop(stays.name)
            assert log.leader is not None
            await services.stop(log.leader.name)
            services.start(stays.name, copies=1)
            await reading.send(producer, 10)
            await services.stop(other.name)
            alone = await until(client, lambda log: log.copies == 1 and counting(1)(log))
            assert [each.id for each in alone.replicas] == [stays.id]
            # Followers may start before there is a leader to copy from.
            for name in ("offset-8", "offset-9"):
                services.start(name, copies=3)
            await until(client, lambda log: len(log.replicas) == 3)
            await services.stop(stays.name)
            services.start(stays.name, copies=1)
            again = await until(client, counting(1))
            assert again.epoch == alone.epoch
            # The copy is registered and serves, while the other two copies wait.
            await answered(lambda: committed(client), lambda offset: offset == 40)
            await reading.send(producer, 10)
            await services.stop(stays.name)
            services.start(stays.name, copies=3)
            three = await led_by_three(client)
            assert {each.name for each in three.in_sync} == {stays.name, "offset-8", "offset-9"}
            await reading.send(producer, 10)
            # The others have the progress of these reads.
            await services.stop(stays.name)
            await reading.send(producer, 10)
        assert reading.seen == list(range(70))
        assert (await client.admin.progress(GROUP, TOPIC))[0].offset == 70
