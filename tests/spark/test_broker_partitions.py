"""Reads of partitions of a broker's log, as Spark's tasks read them, without Spark."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from grpc import aio

from rockoon.errors import BrokerUnavailable, NotLeader
from rockoon_proto.v1.broker_pb2 import ReadLogReply
from rockoon_proto.v1.broker_pb2_grpc import BrokerServicer, add_BrokerServicer_to_server
from rockoon_runtime.wire import GrpcServer
from rockoon_spark.records.columns import LogRecords, to_batch
from rockoon_spark.records.selection import EVERYTHING
from rockoon_spark.source import broker_partition
from rockoon_spark.source.broker_partition import BrokerPartition
from rockoon_spark.source.live_cluster import LiveCluster
from rockoon_spark.source.log_source import DamagedRange, DataLost
from support.broker import RunningBroker, running_broker
from support.broker_routes import BrokerRoutes
from support.drains import AT_ONCE
from support.log_bytes import log_bytes
from support.seeds import seeds

FILE_BYTES = 16_384
SMALL = {"commit_log_file_bytes": FILE_BYTES}


@pytest.fixture
async def nameserver() -> AsyncIterator[BrokerRoutes]:
    async with BrokerRoutes() as running:
        await running.create_topic("T", {"broker-a": 1})
        yield running


def partition(
    broker: RunningBroker,
    start: int,
    stop: int,
    *,
    fails_on_data_loss: bool = True,
    endpoint: str = "127.0.0.1:1",
) -> BrokerPartition:
    return BrokerPartition(
        broker="broker-a",
        address=broker.address,
        endpoint=endpoint,
        start=start,
        stop=stop,
        at_record=start == 0,
        fails_on_data_loss=fails_on_data_loss,
    )


async def read(wanted: BrokerPartition) -> tuple[list[bytes], list[DamagedRange]]:
    found = await asyncio.to_thread(lambda: list(wanted.read()))
    records = [each for each in found if isinstance(each, LogRecords)]
    batches = [to_batch(each, ["body"]) for each in records]
    bodies = [body for batch in batches for body in batch.column("body").to_pylist()]
    return bodies, [each for each in found if isinstance(each, DamagedRange)]


class Deposed(BrokerServicer):
    """A replica that is no longer the leader."""

    async def ReadLog(self, request: object, context: object) -> ReadLogReply:  # noqa: ARG002
        raise NotLeader(replica="broker-a-1", log="broker-a")


@asynccontextmanager
async def deposed() -> AsyncIterator[str]:
    """Yield the address of such a replica."""

    def register(server: aio.Server) -> None:
        add_BrokerServicer_to_server(Deposed(), server)

    async with GrpcServer(
        "broker", "rockoon", "127.0.0.1:0", register, [], drain=AT_ONCE
    ) as server:
        yield server.address


@pytest.mark.parametrize("seed", seeds(1))
async def test_partitions_hold_every_record_once_wherever_they_are_cut(
    tmp_path: Path, nameserver: BrokerRoutes, seed: int
) -> None:
    chance = random.Random(seed)
    async with running_broker(tmp_path, [nameserver.address], **SMALL) as broker:
        sent = [b"%d" % n + bytes(chance.choice([0, 40, 3000])) for n in range(50)]
        for body in sent:
            await broker.append("T", 0, body)
        end = (await broker.describe()).log_max_offset
        for _ in range(5):
            cuts = sorted(chance.sample(range(1, end), 5))
            found = []
            for start, stop in zip([0, *cuts], [*cuts, end], strict=True):
                bodies, damages = await read(partition(broker, start, stop))
                assert not damages
                found += bodies
            assert found == sent, cuts


async def test_damage_is_told_by_the_partition_that_it_begins_in(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        places = [(await broker.append("T", 0, b"%d" % n)).first_physical_offset for n in range(6)]
        with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as log:
            for at in places[2:4]:
                log.seek(at + 4)
                log.write(b"oops")
        end = (await broker.describe()).log_max_offset
        bodies, damages = await read(partition(broker, 0, places[3]))
        assert bodies == [b"0", b"1"]
        assert [(each.start, each.end) for each in damages] == [(places[2], places[4])]
        assert await read(partition(broker, places[3], end)) == ([b"4", b"5"], [])


async def test_a_record_forged_in_a_body_is_told_by_who_reads_that_message(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"ordinary")
        start = (await broker.describe()).log_max_offset
        inner, _ = log_bytes(random.Random(2), start + 88, bodies=[b"pay me"])
        await broker.append("T", 0, inner.tobytes())
        end = (await broker.describe()).log_max_offset
        assert await read(partition(broker, 0, end)) == ([b"ordinary", inner.tobytes()], [])
        # At the end of the log, and before another record.
        for _ in range(2):
            bodies, damages = await read(partition(broker, 0, start + 50))
            assert bodies == [b"ordinary", inner.tobytes()]
            assert [(each.start, each.end) for each in damages] == [(start + 88, end)]
            assert "another splitBytes" in str(damages[0])
            await broker.append("T", 0, b"next")


async def test_what_retention_takes_while_it_is_read_fails_the_read_or_is_left_out(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with running_broker(tmp_path, [nameserver.address], **SMALL) as broker:
        for n in range(8):
            await broker.append("T", 0, b"%d" % n + bytes(6000))
        end = (await broker.describe()).log_max_offset
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    async with running_broker(tmp_path, [nameserver.address], **SMALL) as broker:
        sentence = "retention deleted physical offsets 0 to 16384 of the log of broker 'broker-a'"
        with pytest.raises(DataLost, match=sentence):
            await read(partition(broker, 0, end))
        bodies, _ = await read(partition(broker, 0, end, fails_on_data_loss=False))
        assert [int(body.rstrip(b"\0")) for body in bodies] == list(range(2, 8))
        assert await read(partition(broker, 100, FILE_BYTES, fails_on_data_loss=False)) == ([], [])


async def test_a_log_that_ends_before_it_did_fails_the_read(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"kept")
        end = (await broker.describe()).log_max_offset
        with pytest.raises(DataLost, match=f"lost in a crash physical offsets {end} to {end + 99}"):
            await read(partition(broker, 0, end + 99))
        bodies, _ = await read(partition(broker, 0, end + 99, fails_on_data_loss=False))
        assert bodies == [b"kept"]


async def test_a_broker_that_is_restarted_meanwhile_is_asked_again(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"kept")
        end = (await broker.describe()).log_max_offset
        address = broker.address
        wanted = partition(broker, 0, end, endpoint=nameserver.address)
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(read(wanted), name="reading")
        async with running_broker(tmp_path, [nameserver.address], listen=address):
            assert await reading == ([b"kept"], [])


async def test_a_broker_that_has_another_address_by_then_is_found(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"kept")
        end = (await broker.describe()).log_max_offset
        wanted = partition(broker, 0, end, endpoint=nameserver.address)
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        assert broker.address != wanted.address
        assert await read(wanted) == ([b"kept"], [])


async def test_a_leader_that_was_deposed_is_left_for_the_one_that_leads(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    """The broker answers calls, but does not become the leader again."""
    async with running_broker(tmp_path, [nameserver.address]) as broker, deposed() as former:
        await broker.append("T", 0, b"kept")
        end = (await broker.describe()).log_max_offset
        wanted = partition(broker, 0, end, endpoint=nameserver.address)
        assert await read(replace(wanted, address=former)) == ([b"kept"], [])
        cluster = LiveCluster(nameserver.address)
        planned = await asyncio.to_thread(
            cluster.partitions_of, "broker-a", former, EVERYTHING, 1 << 20
        )
        assert planned == [wanted]


async def test_a_log_that_grows_into_new_files_is_read_as_far_as_it_was_planned(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with running_broker(tmp_path, [nameserver.address], **SMALL) as broker:
        for n in range(8):
            await broker.append("T", 0, b"%d" % n + bytes(3000))
        end = (await broker.describe()).log_max_offset
        wanted = [partition(broker, 0, 20_000), partition(broker, 20_000, end)]
        for n in range(8, 20):
            await broker.append("T", 0, b"%d" % n + bytes(3000))
        assert (await broker.describe()).log_max_offset > end + 2 * FILE_BYTES
        found = [body for each in wanted for body in (await read(each))[0]]
        assert [int(body.rstrip(b"\0")) for body in found] == list(range(8))


async def test_a_broker_that_stays_away_is_named(
    tmp_path: Path, nameserver: BrokerRoutes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_partition, "READ_RETRY_SECONDS", 0.2)
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        wanted = partition(broker, 0, 1000, endpoint=nameserver.address)
    with pytest.raises(BrokerUnavailable, match="'broker-a' does not answer"):
        await read(wanted)
