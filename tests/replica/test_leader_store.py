"""Progress in a replicated journal: the leader acknowledges it once a quorum has it."""

import asyncio
from pathlib import Path

import pytest

from rockoon_core.disk import Disk
from rockoon_core.errors import NotEnoughReplicas, NotLeader
from rockoon_node.store_directory import StoreCluster
from rockoon_offset.journal.journal_log import JournalLog
from rockoon_offset.replication.leader_store import LeaderStore
from support.eventually import eventually
from support.journal_logs import change, content, state_of
from support.log_copies import Copy, copies

BYTES_MAX = 4096


class JournalCopy(JournalLog):
    """A journal with additional methods for tests."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self.failures: list[OSError] = []
        (directory / "log").mkdir(exist_ok=True)
        super().__init__(
            directory / "log",
            directory.name,
            failed=self.failures.append,
            disk=disk,
            bytes_max=BYTES_MAX,
        )

    def content(self) -> bytes:
        return content(self)


def led(copy: Copy) -> LeaderStore:
    root = copy.directory
    cluster = StoreCluster(root / "cluster_id", Disk().replace_file)
    return LeaderStore(copy.log, copy.replica, root, cluster, "offset")


async def test_changes_are_told_when_a_quorum_has_them_and_rounds_are_shared_and_asked_for(
    tmp_path: Path,
) -> None:
    async with copies(tmp_path, open_log=JournalCopy) as logs, asyncio.TaskGroup() as tasks:
        leader = await logs.start()
        store = led(leader)
        running = tasks.create_task(store.run())
        for number in range(100):
            store.require_writable()
            store.write(change(store.ledger, f"g{number % 5}", number))
            if number % 10 == 0:
                end = leader.log.end
                await store.durable()
                assert leader.log.committed_end >= end
        await store.durable()
        # Each change was sent after its question: no separate question was needed.
        assert leader.replica.member.round == 0
        async with asyncio.TaskGroup() as asking:
            for _ in range(50):
                asking.create_task(store.wait_leadership_confirmed())
        assert leader.replica.member.round == 1
        # Records before the question may also have been confirmed before it.
        await store.durable()
        assert leader.replica.member.round == 2
        # The journal has begun files in between, and every copy's ledger equals the leader's.
        await logs.equal(leader.log.end)
        assert len(list((leader.directory / "log").glob("*.journal"))) > 1
        others = logs.followers(leader)
        assert [state_of(each.log) for each in others] == [state_of(leader.log)] * 2
        # The store refuses changes that cannot become durable; its periodic work waits.
        for each in others:
            await each.stop()
        await eventually(lambda: not leader.replica.appends_allowed)
        with pytest.raises(NotEnoughReplicas):
            store.require_writable()
        for number in range(3):
            store.write(change(store.ledger, "g", 1000 + number))
        assert store.is_stalled
        with pytest.raises(NotEnoughReplicas):
            await store.durable()
        for each in others:
            await each.start()
        await store.durable_unbounded()
        await logs.equal(leader.log.end)
        assert [state_of(each.log) for each in others] == [state_of(leader.log)] * 2
        running.cancel()


async def test_a_leader_that_was_deposed_unheard_decides_nothing(tmp_path: Path) -> None:
    async with copies(tmp_path, open_log=JournalCopy) as logs, asyncio.TaskGroup() as tasks:
        first = await logs.start()
        store = led(first)
        # Its periodic work ends with the leadership, not earlier and without an error.
        by_itself = [tasks.create_task(store.run())]
        store.write(change(store.ledger, "g", 1))
        await store.durable()
        logs.freeze(first)
        logs.register.unreachable.add(first.name)
        while not first.log.wants_generation:
            first.log.append([b'["counters",1,1,1]'])
        store.write(change(store.ledger, "g", 1))
        by_itself.append(tasks.create_task(store.durable_unbounded()))
        # A member's heartbeat, a start without a change, and one with a change.
        asked = [
            asyncio.ensure_future(each)  # noqa: TID251
            for each in (store.wait_leadership_confirmed(), store.durable())
        ]
        store.write(change(store.ledger, "g", 2))
        asked.append(asyncio.ensure_future(store.durable()))  # noqa: TID251
        second = await logs.leader(other_than=first)
        next_store = led(second)
        next_store.write(change(next_store.ledger, "g", 3))
        await next_store.durable()
        assert not any(each.done() for each in asked)
        logs.register.reconnect(first.name)
        for each in asked:
            with pytest.raises(NotLeader):
                await each
        with pytest.raises(NotLeader):
            store.require_writable()
        assert not any(each.done() for each in by_itself)
        for each in by_itself:
            each.cancel()
        logs.freeze(first, frozen=False)
        await logs.equal(second.log.end)
        assert state_of(first.log) == state_of(second.log)
