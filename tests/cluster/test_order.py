"""Orderly members that join, leave, are stopped and are killed, as real processes."""

import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import rockoon
from rockoon.cluster import Cluster
from rockoon.local import LocalCluster
from support.eventually import eventually
from support.ordered_group import loaded

# The limit that expires first for a stopped member: its lease, or its time to release a queue.
WAYS = {
    "lease": {"lease_seconds": 2.0, "heartbeat_seconds": 0.4, "handover_seconds_max": 10.0},
    "overtaken": {"lease_seconds": 8.0, "heartbeat_seconds": 2.0, "handover_seconds_max": 2.5},
}


@pytest.fixture(scope="module", params=WAYS)
def local(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, settings={"offset": WAYS[request.param]}) as cluster:
        yield cluster


@pytest.fixture
async def cluster(local: LocalCluster) -> AsyncIterator[Cluster]:
    async with rockoon.connect(local.nameservers) as connected:
        yield connected


async def test_members_that_join_and_leave_keep_the_order_and_repeat_nothing(
    local: LocalCluster, cluster: Cluster, tmp_path: Path
) -> None:
    async with loaded(local, cluster, "peaceful", tmp_path / "log") as members:
        await members.join("a")
        await members.wait_reading("a")
        await members.join("b")
        await members.wait_reading("b")
        await members.join("c")
        await members.wait_reading("c")
        await members.leave("a")
        await members.wait_reading("b")
        await members.leave("b")
        await members.wait_reading("c", 200)
    assert members.log.check() == 0, f"messages came again: see {members.log.path}"


@pytest.mark.parametrize("local", ["lease"], indirect=True)
async def test_a_member_that_is_killed_is_followed_in_order(
    local: LocalCluster, cluster: Cluster, tmp_path: Path
) -> None:
    async with loaded(local, cluster, "deadly", tmp_path / "log") as members:
        first = await members.join("a")
        await members.wait_reading("a")
        await members.join("b")
        await members.wait_reading("b")
        first.kill()
        await first.wait()
        await eventually(lambda: members.log.queues_of("a") <= members.log.queues_of("b"))
    members.log.check(failed=["a"])


async def test_a_member_that_was_stopped_wakes_and_calls_no_handler_for_what_it_has_lost(
    local: LocalCluster, cluster: Cluster, tmp_path: Path
) -> None:
    async with loaded(local, cluster, "sleepy", tmp_path / "log") as members:
        first = await members.join("a")
        await members.wait_reading("a", 200)
        first.send_signal(signal.SIGSTOP)
        had = {queue for _, _, queue, _ in members.log.lines()}
        await members.join("b")
        await eventually(lambda: bool(had & members.log.queues_of("b")))
        await members.wait_reading("b", 100)
        first.send_signal(signal.SIGCONT)
        # Half of the queues stay its own, or return to it, in order.
        await members.wait_reading("a", 100)
        await members.wait_reading("b", 100)
    members.log.check(failed=["a"])
