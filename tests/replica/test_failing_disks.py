"""A disk that refuses writes costs one copy, and not the log: another copy leads."""

import asyncio
import errno
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path

import pytest

import rockoon
from replica.test_broker_copies import created, is_serving, leader_of, led_log
from replica.test_journal_copies import JournalCopy
from replica.test_store_copies import StoreCopy
from rockoon_broker.server import serve
from rockoon_broker.store.errors import AppendRefused
from rockoon_core.disk import Disk
from rockoon_offset.journal.journal_files import RESERVE_FILE
from rockoon_replica.log import LogFull
from rockoon_replica.standing import trouble
from rockoon_runtime.process import Stop
from support.broker import settings_of
from support.etcd import EtcdServer
from support.eventually import answered, eventually
from support.log_copies import Copies, Copy, copies
from support.log_watch import WatchingLog
from support.nameserver import Nameserver, running_nameserver
from support.store_directory import NOW_MS, FailingDisk, healthy, in_log, in_queues
from support.waiting import DEADLINE_SECONDS

NUMBERS = (errno.ENOSPC, errno.EIO, errno.EBADF)
# From the refusal to the next leader.
HAND_OVER_SECONDS = 2.0
# Interval of a store's regular work, as in a broker.
TICK_SECONDS = 0.02


class TickingStoreCopy(StoreCopy):
    """A broker's store with the regular work of a broker."""

    def __init__(self, root: Path, disk: Disk) -> None:
        super().__init__(root, disk)
        self._ticking = asyncio.get_running_loop().create_task(self._tick())

    async def _tick(self) -> None:
        now_ms = NOW_MS
        while True:
            now_ms += 1000
            self.store.tick(now_ms)
            await asyncio.sleep(TICK_SECONDS)

    def close(self) -> None:
        self._ticking.cancel()
        super().close()


def failing(logs: Copies) -> Callable[[Copy], FailingDisk]:
    """Give each copy a disk that can fail; called before the copies start."""
    disks = {}
    for copy in logs.all.values():
        copy.disk = disks[copy.name] = FailingDisk()
    return lambda copy: disks[copy.name]


async def handed_over(logs: Copies, former: Copy) -> Copy:
    """Return the next leader; it leads before clients repeat a call."""
    began = asyncio.get_running_loop().time()
    leader = await logs.leader(other_than=former)
    assert asyncio.get_running_loop().time() - began < HAND_OVER_SECONDS
    return leader


def refusing(where: Callable[[Path], bool], number: int) -> Callable[[Path, int], int]:
    """Return a `fail_write` that refuses some files with an errno."""
    return lambda path, _: number if where(path) else 0


def refuse_one(copy: Copy) -> None:
    """Append as a broker does for a producer; the disk refuses."""
    with suppress(LogFull, Exception):
        copy.log.append(b"refused")


@pytest.mark.parametrize("number", NUMBERS, ids=errno.errorcode.get)
async def test_a_leader_whose_disk_refuses_writes_hands_over_and_says_why(
    tmp_path: Path, number: int
) -> None:
    async with copies(tmp_path, gated=False) as logs:
        disk_of = failing(logs)
        former = await logs.start()
        end = await former.send(b"kept")
        await logs.equal(end)
        await eventually(lambda: all(copy.replica.is_ready for copy in logs.all.values()))
        disk_of(former).fail_write = lambda *_: number
        with pytest.raises(LogFull):
            former.log.append(b"refused")
        leader = await handed_over(logs, former)
        end = await leader.send(b"more")
        await eventually(lambda: "it cannot write" in trouble(former.replica))
        assert not former.replica.is_ready
        assert former.log.durable_end < end
        # Not asked before its disk accepts writes.
        await leader.replica.hand_over(10)
        following = await logs.leader(other_than=leader)
        assert following is not former
        disk_of(former).fail_write = healthy
        await logs.equal(await following.send(b"all have it"))
        await eventually(lambda: former.replica.is_ready)
        assert trouble(former.replica) == ""
        assert b"refused" not in former.log.payloads()


@pytest.mark.parametrize("number", NUMBERS, ids=errno.errorcode.get)
@pytest.mark.parametrize("where", [in_log, in_queues])
async def test_a_leader_hands_over_when_its_commit_log_or_a_consume_queue_is_refused(
    tmp_path: Path, where: Callable[[Path], bool], number: int
) -> None:
    async with copies(tmp_path, gated=False, open_log=TickingStoreCopy) as logs:
        disk_of = failing(logs)
        former = await logs.start()
        await logs.equal(await former.send(b"kept"))
        await eventually(lambda: former.replica.is_ready)
        disk_of(former).fail_write = refusing(where, number)
        refuse_one(former)
        former.replica.written()
        leader = await handed_over(logs, former)
        await leader.send(b"more")
        await eventually(lambda: not former.replica.is_ready)
        disk_of(former).fail_write = healthy
        await logs.equal(await leader.send(b"all have it"))
        await eventually(lambda: former.replica.is_ready)


async def test_a_leader_stays_while_the_others_cannot_commit_without_it(tmp_path: Path) -> None:
    """A hand-over would end reads, too: the next epoch could not be opened."""
    async with copies(tmp_path, gated=False) as logs:
        disk_of = failing(logs)
        leader = await logs.start()
        end = await leader.send(b"kept")
        await logs.equal(end)
        away, other = logs.followers(leader)
        await away.stop()
        disk_of(leader).fail_write = lambda *_: errno.ENOSPC
        with pytest.raises(LogFull):
            leader.log.append(b"refused")
        await eventually(lambda: "it cannot write" in trouble(leader.replica))
        assert not leader.replica.is_ready
        # Readers get replies: a quorum confirms that it leads.
        await leader.replica.round()
        assert leader.replica.epoch
        # Once the third copy is connected, another copy leads.
        await away.start()
        following = await handed_over(logs, leader)
        assert following in (away, other)
        await following.send(b"more")


async def test_a_leader_whose_disk_accepts_writes_again_goes_on_leading(tmp_path: Path) -> None:
    async with copies(tmp_path, ("a", "b"), gated=False) as logs:
        disk_of = failing(logs)
        leader = await logs.start()
        await logs.equal(await leader.send(b"kept"))
        epoch = leader.replica.epoch
        disk_of(leader).fail_write = lambda *_: errno.EIO
        with pytest.raises(LogFull):
            leader.log.append(b"refused")
        await eventually(lambda: not leader.replica.is_ready)
        disk_of(leader).fail_write = healthy
        await eventually(lambda: leader.replica.is_ready and leader.is_leading)
        await logs.equal(await leader.send(b"more"))
        assert leader.replica.epoch == epoch


async def test_a_follower_whose_disk_refuses_writes_is_not_counted_and_ends_nothing(
    tmp_path: Path,
) -> None:
    async with copies(tmp_path, gated=False) as logs:
        disk_of = failing(logs)
        leader = await logs.start()
        await logs.equal(await leader.send(b"kept"))
        hurt, other = logs.followers(leader)
        disk_of(hurt).fail_write = lambda *_: errno.EIO
        end = await leader.send(b"more")
        await eventually(lambda: not hurt.replica.is_ready)
        assert hurt.log.durable_end < end == other.log.durable_end
        # With the third copy away nothing is acknowledged.
        await other.stop()
        leader.log.append(b"waits")
        leader.replica.written()
        await eventually(lambda: leader.log.durable_end == leader.log.end)
        assert leader.log.committed_end == end
        disk_of(hurt).fail_write = healthy
        await leader.replica.wait_committed(leader.log.end)
        assert hurt.log.durable_end == leader.log.end


async def test_an_offset_service_without_room_hands_over_before_its_reserve_is_used_up(
    tmp_path: Path,
) -> None:
    async with copies(tmp_path, gated=False, open_log=JournalCopy) as logs:
        disk_of = failing(logs)
        former = await logs.start()
        await logs.equal(await former.send(b"kept"))
        disk, reserve = disk_of(former), former.log.directory / RESERVE_FILE
        disk.fail_write = lambda *_: errno.ENOSPC if reserve.exists() else 0
        disk.fail_allocate = lambda _: errno.ENOSPC
        # Accepted before: written to the space that was reserved for it.
        end = await former.send(b"in the reserve")
        leader = await handed_over(logs, former)
        assert leader.log.end > end
        await eventually(lambda: not former.replica.is_ready)
        disk.fail_write = disk.fail_allocate = healthy
        await logs.equal(await leader.send(b"all have it"))
        await eventually(lambda: former.replica.is_ready)
        assert not any(copy.log.failures for copy in logs.all.values())


async def test_a_leader_with_a_fuller_disk_than_allowed_hands_over(tmp_path: Path) -> None:
    """It refuses clients' messages, and stays ready: it can be read."""
    async with copies(tmp_path, gated=False, open_log=TickingStoreCopy) as logs:
        disk_of = failing(logs)
        former = await logs.start()
        await logs.equal(await former.send(b"kept"))
        disk_of(former).usage_percent = 91
        leader = await logs.leader(other_than=former)
        await eventually(lambda: "91 % full" in trouble(former.replica))
        await eventually(lambda: former.replica.is_ready)
        # No other copy has more space.
        for copy in logs.all.values():
            disk_of(copy).usage_percent = 91
        await eventually(lambda: all("91 %" in trouble(copy.replica) for copy in logs.all.values()))
        epoch = leader.replica.epoch
        with pytest.raises(AppendRefused, match="91 % full"):
            leader.log.append(b"refused")
        # The log can also be read after an election: the log's own records are written.
        await leader.stop()
        following = await logs.leader(other_than=leader)
        assert following.replica.epoch > epoch
        await following.replica.round()


async def test_producers_go_on_while_the_disk_of_the_leading_broker_refuses_writes(
    tmp_path: Path, shared_etcd: EtcdServer, cluster: str
) -> None:
    """First its CommitLog, then a ConsumeQueue of the next leader; health services report it."""
    async with AsyncExitStack() as stack:
        nameserver = await stack.enter_async_context(
            running_nameserver(cluster=cluster, etcd=(shared_etcd.endpoint,))
        )
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        stop, disks = Stop(), {f"broker-a-{number}": FailingDisk() for number in range(3)}
        for name, disk in disks.items():
            settings = settings_of(
                tmp_path / name, [nameserver.address], cluster=cluster, copies=3, replica=name
            )
            tasks.create_task(serve(settings, stop, disk=disk), name=name)
        try:
            async with (
                asyncio.timeout(DEADLINE_SECONDS),
                rockoon.connect(nameserver.address, cluster=cluster) as client,
                client.producer() as producer,
            ):
                await answered(lambda: created(client), bool)
                for where, number in ((in_log, errno.EIO), (in_queues, errno.ENOSPC)):
                    log = await led_log(nameserver)
                    former = leader_of(log)
                    address = next(n.address for n in log.nodes if n.store_id == log.state.leader)
                    await answered(partial(is_serving, address), bool)
                    disks[former].fail_write = refusing(where, number)
                    for body in range(3):
                        await producer.send("orders", b"%d" % body)
                    # The entries of a queue are written to its file with the next recovery point.
                    await eventually_led_by_another(nameserver, former)
                    await answered(partial(is_serving, address), lambda serving: not serving)
                    await producer.send("orders", b"behind it")
                    disks[former].fail_write = healthy
                    await answered(partial(is_serving, address), bool)
        finally:
            stop.request("the test is over")


async def eventually_led_by_another(nameserver: Nameserver, former: str) -> None:
    async with WatchingLog(nameserver) as watching:
        await watching.until(
            lambda log: log.state.leader and log.state.confirmed and leader_of(log) != former
        )
