"""Calls for generations: describe, upload, publish, read, and refusals."""

import asyncio
import urllib.request
import zlib
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rockoon.local.directory import choose_port
from rockoon_broker.clock import SystemClock
from rockoon_core import errors
from rockoon_format.columns import decode_columns
from rockoon_format.generation import Manifest, PartEntries
from rockoon_proto.v1 import broker_pb2 as pb
from support.broker import RunningBroker, bodies_of, running_broker
from support.broker_routes import BrokerRoutes
from support.cold_disk import ColdDisk
from support.eventually import answered, eventually
from support.generations import (
    compact_over_the_wire,
    contents,
    made_elsewhere,
    publish,
    put,
    upload,
)
from support.store_directory import FailingDisk, no_space_in
from support.waiting import DEADLINE_SECONDS


async def latest(nameserver: BrokerRoutes, **attributes: str) -> None:
    """Create a compacted topic with two queues."""
    await nameserver.create_topic(
        "Latest", {"broker-a": 2}, cleanup_policy="COMPACTION", **attributes
    )


async def send(broker: RunningBroker, *pairs: str, queue_id: int = 0) -> None:
    """Send messages `key=value`; without a value, a tombstone."""
    for pair in pairs:
        key, _, value = pair.partition("=")
        await broker.append("Latest", queue_id, value.encode(), keys=key)


async def describe(broker: RunningBroker, **request: Any) -> Any:
    return await broker.call("DescribeCompaction", pb.DescribeCompactionRequest(**request))


async def whole_file(broker: RunningBroker, generation: int, name: str, max_bytes: int) -> bytes:
    found = b""
    while True:
        reply = await broker.call(
            "ReadGeneration",
            pb.ReadGenerationRequest(
                generation=generation, file_name=name, offset=len(found), max_bytes=max_bytes
            ),
        )
        found += reply.data
        if len(reply.data) < max_bytes:
            assert len(found) == reply.file_bytes
            return found


async def test_what_is_published_is_served_with_holes(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await latest(nameserver)
    async with running_broker(tmp_path / "store", [nameserver.address]) as broker:
        await send(broker, "a=1", "b=1", "a=2", "c=1", "b=")
        await send(broker, "d=1", queue_id=1)
        made = await compact_over_the_wire(broker, tmp_path / "store", tmp_path / "copy", "job-1")
        await send(broker, "c=2")
        assert await broker.bodies("Latest") == [b"2", b"1", b"", b"2"]
        assert await broker.bodies("Latest", 1) == [b"1"]
        reply = await broker.pull("Latest", 0, 1)
        assert (reply.status, reply.next_offset, bodies_of(reply)) == (
            pb.FOUND,
            5,
            [b"2", b"1", b""],
        )

        for offsets_only in (False, True):
            request = pb.QueueStatusRequest(
                queues=[pb.BrokerQueue(topic="Latest", queue_id=0)], offsets_only=offsets_only
            )
            [state] = (await broker.call("QueueStatus", request)).queues
            assert (state.min_offset, state.max_offset) == (0, 6)
            assert (state.compacted_to_offset, state.compacted_records) == (5, 3)

        told = (await broker.describe()).compaction
        assert (told.generation, told.records, told.topics) == (1, 4, 1)
        assert (told.log_end, told.created_ms) == (made.log_end, made.created_ms)
        assert told.files_bytes == sum(
            each.records_bytes + each.entries_bytes for each in made.parts
        )
        held = pb.CompactionHold(topic="Latest", physical_offset=made.log_end)
        await broker.until(lambda described: described.compaction.hold == held)


class LateClock(SystemClock):
    """This machine's clock, some hours ahead."""

    def __init__(self, hours: int) -> None:
        self._ahead_ms = hours * 3_600_000

    def now_ms(self) -> int:
        return super().now_ms() + self._ahead_ms


def compaction_metrics(port: int) -> dict[str, float]:
    """Return the broker's metrics of compaction, without the prefix of their names."""
    url = f"http://127.0.0.1:{port}/metrics"
    with urllib.request.urlopen(url, timeout=DEADLINE_SECONDS) as page:
        lines = page.read().decode().splitlines()
    prefix = "rockoon_compaction_"
    own = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
    return {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in own}


async def test_a_metric_tells_how_long_the_oldest_message_waits_for_a_compaction(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("Ordinary", {"broker-a": 1})
    await latest(nameserver)
    port, store = choose_port(()), tmp_path / "store"

    def running(hours: int) -> AbstractAsyncContextManager[RunningBroker]:
        listen = f"127.0.0.1:{port}"
        clock = LateClock(hours)
        return running_broker(store, [nameserver.address], clock=clock, metrics_listen=listen)

    async def waits(least: float, most: float) -> dict[str, float]:
        return await answered(
            lambda: asyncio.to_thread(compaction_metrics, port),
            lambda found: least <= found["waiting_seconds"] / 3600 <= most,
        )

    async with running(0) as broker:
        await broker.append("Ordinary", 0, b"1")
        await waits(0, 0)
    async with running(10) as broker:
        await waits(0, 0)
        await send(broker, "a=1")
    async with running(36) as broker:
        await send(broker, "b=1")
        assert "generation_age_seconds" not in await waits(26, 26.5)
        now_ms = LateClock(36).now_ms()
        made = await compact_over_the_wire(broker, store, tmp_path / "copy", "job-1", now_ms=now_ms)
        await waits(0, 0)
        await send(broker, "a=2")
    async with running(38):
        found = await waits(2, 2.5)
        assert 2 <= found["generation_age_seconds"] / 3600 <= 2.5
        assert found["generation_bytes"] == made.files_bytes
        assert found["records"] == 2


async def test_a_job_is_told_what_it_needs(tmp_path: Path, nameserver: BrokerRoutes) -> None:
    await nameserver.create_topic("Ordinary", {"broker-a": 1})
    await nameserver.create_topic("Elsewhere", {"broker-b": 1}, cleanup_policy="COMPACTION")
    await latest(nameserver, delete_retention_ms="60000")
    store = tmp_path / "store"
    async with running_broker(store, [nameserver.address]) as broker:
        await send(broker, "a=1", "b=1")
        told = await describe(broker)
        assert told.name == "broker-a"
        assert (told.state.generation, told.manifest) == (0, b"")
        assert [(topic.name, topic.queues) for topic in told.topics] == [("Latest", 2)]
        assert told.topics[0].tombstone_retention_ms == 60_000
        assert told.topics[0].attributes["delete.retention.ms"] == "60000"
        log = (store / "commitlog" / f"{0:020d}").read_bytes()[: told.log_end]
        assert told.log_tail == pb.LogTail(start=0, tail_bytes=len(log), crc32=zlib.crc32(log))
        assert told.log_end == (await broker.describe()).log_max_offset
        assert not told.dropped

        await nameserver.delete_topic("Latest")
        await latest(nameserver)
        end = told.log_end
        await broker.until(lambda described: described.route_revision >= nameserver.revision)
        again = await describe(broker, log_end=end - 1)
        assert {each.topic: each.dropped_below for each in again.dropped} == {"Latest": end}
        assert (again.log_end, again.topics[0].tombstone_retention_ms) == (end - 1, 86_400_000)
        for outside in (-1, end + 1):
            with pytest.raises(errors.InvalidOffset, match="visible and durable log, from 0 to"):
                await describe(broker, log_end=outside)


async def test_a_generations_files_are_read_in_pieces(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await latest(nameserver)
    async with running_broker(tmp_path / "store", [nameserver.address]) as broker:
        await send(broker, "a=1", "b=1", "a=2")
        for number in (1, 2):
            await compact_over_the_wire(
                broker, tmp_path / "store", tmp_path / f"copy-{number}", f"job-{number}"
            )
        files = tmp_path / "store" / "compacted" / f"{2:020d}"
        for path in files.iterdir():
            assert await whole_file(broker, 2, path.name, 100) == path.read_bytes()
        assert Manifest.from_json((await describe(broker)).manifest).generation == 2
        entries = await whole_file(broker, 1, "00000.entries", 1 << 20)
        assert len(PartEntries.decode(entries)) == 2, "one that was replaced stays for its readers"

        for generation, name in (
            (0, "manifest.json"),
            (-1, "manifest.json"),
            (3, "manifest.json"),
            (2, "00001.records"),
            (2, "../current"),
            (2, ""),
        ):
            with pytest.raises(errors.GenerationNotFound, match="broker 'broker-a' has no file"):
                await whole_file(broker, generation, name, 100)


async def test_a_lost_answer_is_asked_for_again(tmp_path: Path, nameserver: BrokerRoutes) -> None:
    """Also from another caller, while it runs, and with the upload deleted or uploaded again."""
    await latest(nameserver)
    async with running_broker(tmp_path / "store", [nameserver.address]) as broker:
        await send(broker, "a=1", "a=2")
        directory = made_elsewhere(tmp_path / "store", tmp_path / "copy")
        manifest = await upload(broker, directory, "job-1")
        await put(broker, "job-1", "00007.records", b"what another attempt left")
        async with asyncio.TaskGroup() as tasks:
            told = [tasks.create_task(publish(broker, "job-1", manifest)) for _ in range(3)]
        assert {each.result().generation for each in told} == {1}
        assert (await publish(broker, "job-1", manifest)).generation == 1
        await upload(broker, directory, "job-2")
        state = await publish(broker, "job-2", manifest)
        assert (state.generation, state.uploads) == (1, 0)
        assert await broker.bodies("Latest") == [b"2"]
        assert contents(tmp_path / "store/compacted" / directory.name) == contents(directory)


async def test_of_two_jobs_at_once_one_is_refused(tmp_path: Path, nameserver: BrokerRoutes) -> None:
    await latest(nameserver)
    async with running_broker(tmp_path / "store", [nameserver.address]) as broker:
        await send(broker, "a=1", "a=2")
        one = made_elsewhere(tmp_path / "store", tmp_path / "one", now_ms=1_700_000_000_001)
        other = made_elsewhere(tmp_path / "store", tmp_path / "other", now_ms=1_700_000_000_002)
        manifests = [await upload(broker, one, "one"), await upload(broker, other, "other")]
        async with asyncio.TaskGroup() as tasks:
            answers = [
                tasks.create_task(outcome(publish(broker, upload_id, manifest)))
                for upload_id, manifest in zip(("one", "other"), manifests, strict=True)
            ]
        assert sorted(each.result() for each in answers) == ["", "GENERATION_REFUSED"]
        assert (await describe(broker)).state.uploads == 0
        assert await broker.bodies("Latest") == [b"2"]


async def outcome(call: Any) -> str:
    try:
        await call
    except errors.RockoonError as refusal:
        return refusal.name
    return ""


async def test_what_does_not_fit_is_refused_with_the_reason_and_asked_again_too(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await latest(nameserver)
    async with running_broker(tmp_path / "store", [nameserver.address]) as broker:
        await send(broker, "a=1", "b=1", "a=2")
        directory = made_elsewhere(tmp_path / "store", tmp_path / "copy")
        good = Manifest.from_json(await upload(broker, directory, "job-1"))
        records = (directory / "00000.records").read_bytes()
        flipped = records[:-1] + bytes([records[-1] ^ 1])
        wrong_tail = replace(good.log_tail, crc32=good.log_tail.crc32 ^ 1)
        cases: list[tuple[str, bytes, dict[str, bytes], str]] = [
            ("no-manifest", b"{}", {}, "not a manifest"),
            ("files-missing", good.to_json(), {}, "there is no 00000.records"),
            ("short", good.to_json(), {"00000.records": records[:-1]}, "bytes, but .* by the"),
            ("flipped", good.to_json(), {"00000.records": flipped}, "checksum"),
            ("other-log", replace(good, log_tail=wrong_tail).to_json(), {}, "its log differs"),
            ("no-successor", replace(good, generation=5, replaces=4).to_json(), {}, "replaces"),
        ]
        for upload_id, manifest, changed, reason in cases:
            if upload_id not in ("no-manifest", "files-missing"):
                await upload(broker, directory, upload_id)
            for name, content in changed.items():
                await put(broker, upload_id, name, content)
            for _ in range(2):
                with pytest.raises(errors.GenerationRefused, match=reason):
                    await publish(broker, upload_id, manifest)
            told = (await broker.describe()).compaction
            assert (told.generation, told.uploads) == (0, 1), upload_id
        assert told.refusal.generation == 5
        assert "replaces" in told.refusal.reason
        assert (await publish(broker, "job-1", good.to_json())).generation == 1
        assert not (await broker.describe()).compaction.HasField("refusal")


async def test_an_upload_can_be_discarded(tmp_path: Path, nameserver: BrokerRoutes) -> None:
    async with running_broker(tmp_path / "store", [nameserver.address]) as broker:
        await put(broker, "job-1", "00000.records", b"x" * 5000)
        assert (await broker.describe()).compaction.uploads == 1
        for _ in range(2):
            await broker.call("DiscardGeneration", pb.DiscardGenerationRequest(upload_id="job-1"))
        assert (await broker.describe()).compaction.uploads == 0
        assert not list((tmp_path / "store").rglob("*.records"))
        with pytest.raises(errors.InvalidArgument, match="has already been published or discarded"):
            await put(broker, "job-1", "00000.records", b"x")
        with pytest.raises(errors.InvalidArgument, match="is not an upload id"):
            await broker.call("DiscardGeneration", pb.DiscardGenerationRequest(upload_id="../x"))


async def test_a_publication_outlives_its_caller_and_a_restart(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await latest(nameserver)
    async with running_broker(tmp_path / "store", [nameserver.address]) as broker:
        await send(broker, "a=1", "a=2")
        directory = made_elsewhere(tmp_path / "store", tmp_path / "copy")
        manifest = await upload(broker, directory, "job-1")
        async with asyncio.TaskGroup() as tasks:
            caller = tasks.create_task(publish(broker, "job-1", manifest))
            await broker.until(lambda described: described.compaction.uploads == 0)
            caller.cancel()
        await broker.until(lambda described: described.compaction.generation == 1)
    async with running_broker(tmp_path / "store", [nameserver.address]) as broker:
        assert (await publish(broker, "job-1", manifest)).generation == 1
        assert await broker.bodies("Latest") == [b"2"]
        await broker.until(lambda _: not list((tmp_path / "store/compacted").glob(".incoming*")))


async def test_an_upload_goes_on_when_its_broker_was_restarted(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await latest(nameserver)
    async with running_broker(tmp_path / "store", [nameserver.address]) as broker:
        await send(broker, "a=1", "a=2")
        directory = made_elsewhere(tmp_path / "store", tmp_path / "copy")
        await put(broker, "job-1", "00000.records", (directory / "00000.records").read_bytes())
    async with running_broker(tmp_path / "store", [nameserver.address]) as broker:
        assert (await broker.describe()).compaction.uploads == 1
        await put(broker, "job-1", "00000.entries", (directory / "00000.entries").read_bytes())
        manifest = (directory / "manifest.json").read_bytes()
        assert (await publish(broker, "job-1", manifest)).generation == 1
        assert await broker.bodies("Latest") == [b"2"]


async def test_a_generation_that_lies_there_at_the_start_is_waited_for(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    """As after a kill between the rename of the generation to its number and its use."""
    await latest(nameserver)
    store = tmp_path / "store"
    async with running_broker(store, [nameserver.address]) as broker:
        await send(broker, "a=1", "a=2")
    directory = made_elsewhere(store, tmp_path / "copy")
    manifest = (directory / "manifest.json").read_bytes()
    (store / "compacted").mkdir(exist_ok=True)
    directory.rename(store / "compacted" / directory.name)
    async with running_broker(store, [nameserver.address]) as broker:
        assert (await publish(broker, "job-1", manifest)).generation == 1
        assert await broker.bodies("Latest") == [b"2"]


async def test_a_damaged_generation_that_lies_there_at_the_start_is_refused(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await latest(nameserver)
    store = tmp_path / "store"
    async with running_broker(store, [nameserver.address]) as broker:
        await send(broker, "a=1", "a=2")
    directory = made_elsewhere(store, tmp_path / "copy")
    manifest = (directory / "manifest.json").read_bytes()
    (directory / "00000.records").write_bytes(b"torn")
    (store / "compacted").mkdir(exist_ok=True)
    directory.rename(store / "compacted" / directory.name)
    async with running_broker(store, [nameserver.address]) as broker:
        with pytest.raises(errors.GenerationRefused, match=r"00000\.records"):
            await publish(broker, "job-1", manifest)
        assert await broker.bodies("Latest") == [b"1", b"2"]


async def test_damage_that_readers_met_is_told_by_the_broker(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await latest(nameserver)
    async with running_broker(tmp_path / "store", [nameserver.address]) as broker:
        await send(broker, "a=1", "a=2")
        await compact_over_the_wire(broker, tmp_path / "store", tmp_path / "copy", "job-1")
        assert await broker.bodies("Latest") == [b"2"]
        assert list((await broker.describe()).problems) == []
        (records,) = (tmp_path / "store" / "compacted").rglob("00000.records")
        with records.open("r+b") as file:
            file.write(b"\xff" * 200)
        for _ in range(2):
            with pytest.raises(errors.StoreCorrupt):
                await broker.pull("Latest")
        (problem,) = (await broker.describe()).problems
        assert problem.startswith(f"readers found damage in {records}: at byte 0: ")


async def test_a_topic_that_is_compacted_no_more_keeps_what_was_left_of_it(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await latest(nameserver)
    async with running_broker(tmp_path / "store", [nameserver.address]) as broker:
        await send(broker, "a=1", "a=2")
        await compact_over_the_wire(broker, tmp_path / "store", tmp_path / "copy", "job-1")
        await send(broker, "b=1")
        await broker.until(lambda described: described.compaction.HasField("hold"))
        revision = await nameserver.set_attribute("Latest", "cleanup.policy", "DELETE")
        await broker.until(lambda described: described.route_revision >= revision)
        await broker.append("Latest", 0, b"no key")
        told = await broker.until(lambda described: not described.compaction.HasField("hold"))
        assert (told.compaction.topics, told.compaction.generation) == (0, 1)
        assert await broker.bodies("Latest") == [b"2", b"1", b"no key"]


async def test_while_a_reader_waits_for_a_cold_generation_others_do_not(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await latest(nameserver)
    async with running_broker(tmp_path / "store", [nameserver.address]) as broker:
        await send(broker, "a=1", "a=2")
        await compact_over_the_wire(broker, tmp_path / "store", tmp_path / "copy", "job-1")
    disk = ColdDisk()
    async with (
        running_broker(tmp_path / "store", [nameserver.address], disk=disk, index="off") as broker,
        asyncio.TaskGroup() as tasks,
    ):
        await broker.describe()
        disk.evict()
        disk.moves.clear()
        cold = tasks.create_task(broker.bodies("Latest"))
        await eventually(lambda: disk.loaded)
        await send(broker, "b=1", queue_id=1)
        assert await broker.bodies("Latest", 1) == [b"1"]
        assert not cold.done()
        disk.moves.set()
        assert await cold == [b"2"]
        assert disk.waited == 0


async def test_a_deleted_topic_is_not_served_from_its_generation(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await latest(nameserver)
    async with running_broker(tmp_path / "store", [nameserver.address]) as broker:
        await send(broker, "a=1", "a=2")
        await compact_over_the_wire(broker, tmp_path / "store", tmp_path / "copy", "job-1")
        await nameserver.delete_topic("Latest")
        await latest(nameserver)
        await broker.until(lambda described: described.route_revision >= nameserver.revision)
        await broker.append("Latest", 0, b"new", keys="a")
        assert await broker.bodies("Latest") == [b"new"]
        reply = await broker.pull("Latest")
        assert (reply.min_offset, reply.max_offset) == (0, 1)
    async with running_broker(tmp_path / "store", [nameserver.address]) as broker:
        assert await broker.bodies("Latest") == [b"new"]
        await compact_over_the_wire(broker, tmp_path / "store", tmp_path / "again", "job-2")
        assert await broker.bodies("Latest") == [b"new"]


async def found(broker: RunningBroker, key: str, **more: Any) -> list[bytes]:
    reply = await broker.query("Latest", key, **more)
    assert reply.whole_range_searched, reply.not_searched_because
    return bodies_of(reply)


async def test_by_key_what_is_left_is_found_and_what_came_since(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    """Superseded messages are not found, although the log still has them; newer ones are, in each
    version."""
    await latest(nameserver)
    async with running_broker(tmp_path / "store", [nameserver.address]) as broker:
        await send(broker, "a=1", "a=2", "b=1", "a b=both")
        await send(broker, "a=elsewhere", queue_id=1)
        assert await found(broker, "a") == [b"elsewhere", b"both", b"2", b"1"]
        await compact_over_the_wire(broker, tmp_path / "store", tmp_path / "copy", "job-1")
        assert await found(broker, "a") == [b"elsewhere", b"both"]
        assert await found(broker, "b") == [b"both", b"1"]
        await send(broker, "a=3", "a=4", "c=1")
        assert await found(broker, "a") == [b"4", b"3", b"elsewhere", b"both"]
        assert await found(broker, "c") == [b"1"]
        assert await found(broker, "nobody") == []
        reply = await broker.query("Latest", "a", max_messages=3)
        assert bodies_of(reply) == [b"4", b"3", b"elsewhere"]
        assert "more than 3 messages" in reply.not_searched_because

        newest = decode_columns((await broker.pull("Latest", 1)).frames).store_timestamps_ms[0]
        assert await found(broker, "a", end_ms=int(newest) - 1) == [b"both"]
        assert await found(broker, "a", begin_ms=1 << 61, end_ms=0) == []


async def test_without_an_index_only_what_is_compacted_is_found(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await latest(nameserver)
    async with running_broker(tmp_path / "store", [nameserver.address], index="off") as broker:
        await send(broker, "a=1", "a=2")
        request = pb.QueryMessagesRequest(topic="Latest", key="a")
        with pytest.raises(errors.IndexOff):
            await broker.call("QueryMessages", request)
        made = await compact_over_the_wire(broker, tmp_path / "store", tmp_path / "copy", "job-1")
        await send(broker, "a=3")
        reply = await broker.call("QueryMessages", request)
        assert bodies_of(reply) == [b"2"]
        assert not reply.whole_range_searched
        assert f"only compacted messages, up to {made.log_end}" in reply.not_searched_because


async def test_a_generation_made_before_its_topic_was_deleted_brings_nothing_back(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await latest(nameserver)
    async with running_broker(tmp_path / "store", [nameserver.address]) as broker:
        await send(broker, "a=1", "a=2")
        directory = made_elsewhere(tmp_path / "store", tmp_path / "copy")
        manifest = await upload(broker, directory, "job-1")
        await nameserver.delete_topic("Latest")
        await latest(nameserver)
        await broker.until(lambda described: described.route_revision >= nameserver.revision)
        await broker.append("Latest", 0, b"new", keys="a")
        assert await outcome(publish(broker, "job-1", manifest)) in ("", "GENERATION_REFUSED")
        assert await broker.bodies("Latest") == [b"new"]
        assert await found(broker, "a") == [b"new"]


async def test_a_disk_that_takes_no_file_is_told_of_and_appends_go_on(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    disk = FailingDisk()
    disk.fail_write = no_space_in(lambda path: path.parent.name.startswith(".incoming-"))
    await latest(nameserver)
    async with running_broker(tmp_path / "store", [nameserver.address], disk=disk) as broker:
        await send(broker, "a=1", "a=2")
        with pytest.raises(errors.StoreNotWritable, match="refuses a generation's file"):
            await put(broker, "job-1", "00000.records", b"x")
        disk.fail_write = lambda _path, _position: 0
        await compact_over_the_wire(broker, tmp_path / "store", tmp_path / "copy", "job-2")
        assert await broker.bodies("Latest") == [b"2"]


async def test_a_broker_that_stops_keeps_nobody_waiting_for_a_publication(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    """The log's end is not durable, so the generation waits. If one caller cancels, the publication
    continues for the others."""
    await latest(nameserver)
    async with running_broker(
        tmp_path / "store", [nameserver.address], flush="async", flush_interval_ms=60_000
    ) as broker:
        await send(broker, "a=1", "a=2")
        directory = made_elsewhere(tmp_path / "store", tmp_path / "copy")
        manifest = await upload(broker, directory, "job-1")
        async with asyncio.TaskGroup() as tasks:
            answer = tasks.create_task(outcome(publish(broker, "job-1", manifest)))
            await until_exists(tmp_path / "store" / "compacted" / directory.name)
            request = pb.PublishGenerationRequest(upload_id="job-1", manifest=manifest)
            with pytest.raises(errors.RockoonError):
                await broker.call("PublishGeneration", request, seconds=0.2)
            assert not answer.done()
            broker.stop.request("the test wants it")
        assert answer.result() == "NOT_READY"
    async with running_broker(tmp_path / "store", [nameserver.address]) as broker:
        assert (await publish(broker, "job-1", manifest)).generation == 1
        assert await broker.bodies("Latest") == [b"2"]


async def until_exists(path: Path) -> None:
    await eventually(path.exists)
